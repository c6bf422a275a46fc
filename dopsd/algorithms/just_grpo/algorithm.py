"""JustGRPO: group-relative policy gradient on rollouts that are made from left to right.

arXiv 2601.15165; the defaults are those of its published code. A token is scored with exactly the
tokens that the sampler saw, so that its log-probability is exact, and takes a forward of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import Collected, LossOutput
from dopsd.algorithms.common.divergence import entropy
from dopsd.algorithms.common.groups import RewardedGroups, group_collector
from dopsd.algorithms.common.losses import masked_cross_entropy, metric_sums
from dopsd.algorithms.just_grpo.positions import AT_ONCE, batch_of, position_logits
from dopsd.core.tensors import through_first
from dopsd.rollout.groups import RolloutStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.common.groups import Rewarded
    from dopsd.algorithms.just_grpo.config import JustGrpoConfig
    from dopsd.algorithms.just_grpo.positions import Positions
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutCollector


def build(config: JustGrpoConfig, context: AlgorithmContext) -> JustGrpo:
    """Return the algorithm, with a collector that commits one token a step, the leftmost.

    With a threshold, all tokens that reach it are committed at once, and else the leftmost.
    """
    sampling = config.sampling_of(context.sampling)
    collector = group_collector(config, replace(context, sampling=sampling))
    return JustGrpo(config, collector, min(AT_ONCE, context.sequences_at_once))


class JustGrpo:
    """Compare rewards within groups, and make one update per collect.

    Args:
        config: settings of JustGRPO.
        collector: samples and scores rollouts.
        at_once: positions of a row.
    """

    normalize_by_all_prompts = False  # weights count rollouts with an advantage

    def __init__(self, config: JustGrpoConfig, collector: RolloutCollector, at_once: int) -> None:
        self.config, self.collector, self.at_once = config, collector, at_once
        self.groups = RewardedGroups(config, collector, "z", config.epsilon)

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Sample and reward groups, and return the rollouts with an advantage as one update."""
        groups, stats = self.groups.sample(policy, problems, update)
        rewarded = [item for group in groups for item in group if item.advantage]
        counters = stats.counters | {"trajectories": len(rewarded)}
        batches = [self._batch(policy, rewarded)] if rewarded else []
        updates = [batches] if any(map(len, batches)) else []
        return Collected(updates, RolloutStats(counters, stats.metrics))

    def _batch(self, policy: Policy, rewarded: Sequence[Rewarded]) -> Positions:
        completions = torch.stack([item.rollout.completion_ids for item in rewarded])
        is_scored = through_first(completions, policy.eos_id) | self.config.after_end
        marks = [r.is_fallback for item in rewarded if (r := item.rollout).is_fallback is not None]
        if marks:
            is_scored &= torch.stack(marks)
        places = [row.nonzero()[:, 0] for row in is_scored]
        batch = batch_of(policy, rewarded, places, self.at_once).to(policy.device)
        if self.config.positions != "entropy_top":
            return batch
        entropies = self._entropies(policy, batch).split([len(part) for part in places])
        places = [part[self._top(e)] for part, e in zip(places, entropies, strict=True)]
        return batch_of(policy, rewarded, places, self.at_once).to(policy.device)

    def _top(self, entropies: Tensor) -> Tensor:
        """Return the indices of the largest entropies, in order."""
        count = math.ceil(self.config.entropy_share * len(entropies))
        return entropies.argsort(descending=True, stable=True)[:count].sort().values

    def _entropies(self, policy: Policy, batch: Positions) -> Tensor:
        """Return the entropy in nats of every position [N], in main memory."""
        parts = batch.split(self.collector.sampling.batch_size)
        length = self.collector.sampling.gen_length
        with torch.no_grad():
            found = [entropy(position_logits(policy, part, length).logits) for part in parts]
        return torch.cat(found).cpu()

    def loss(self, policy: Policy, batch: Positions) -> LossOutput:
        """Return -A ln p summed over positions, divided by the length of the completion."""
        length = self.collector.sampling.gen_length
        scored = position_logits(policy, batch, length)
        logps = -masked_cross_entropy(scored.logits, scored.targets)  # [N]
        total = -(batch.advantage[scored.rows] * logps).sum() / length
        return LossOutput(total, metric_sums({"logp": logps.sum()}, len(logps)))
