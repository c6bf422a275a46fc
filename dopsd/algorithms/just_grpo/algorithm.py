"""JustGRPO: group-relative policy gradient on rollouts that are made from left to right.

arXiv 2601.15165; the defaults are those of its published code. A token is scored with exactly the
tokens that the sampler saw, so that its log-probability is exact, and takes a forward of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.common.groups import Rewarded, RewardedGroups, group_collector
from dopsd.algorithms.common.losses import entropy, masked_cross_entropy, metric_sums
from dopsd.algorithms.common.views import Completions
from dopsd.core.tensors import through_first, true_positions
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutCollector, RolloutStats

if TYPE_CHECKING:
    from dopsd.algorithms.just_grpo.config import JustGrpoConfig
    from dopsd.models.policy import Policy


def build(config: JustGrpoConfig, context: AlgorithmContext) -> JustGrpo:
    """Return the algorithm, with a collector that commits one token a step, the leftmost.

    With a threshold, all tokens that reach it are committed at once, and else the leftmost.
    """
    sampling = config.sampling_of(context.sampling)
    collector = group_collector(config, replace(context, sampling=sampling))
    return JustGrpo(config, collector, min(AT_ONCE, context.sequences_at_once))


class JustGrpo:
    """Compare rewards within groups, and make one update per collect."""

    normalize_by_all_prompts = False  # weights count rollouts with an advantage

    def __init__(self, config: JustGrpoConfig, collector: RolloutCollector, at_once: int) -> None:
        self.config, self.collector, self.at_once = config, collector, at_once
        self.groups = RewardedGroups(config, collector, "z", config.epsilon)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and reward groups, and return the rollouts with an advantage as one update."""
        groups, stats = self.groups.sample(policy, problems, collect)
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


AT_ONCE = 8  # positions of a row: more make rows that memory may not hold, fewer copy rollouts


@dataclass(frozen=True)
class Positions(Batch):
    """Rollouts, each with some positions of its completion to predict."""

    ids: Tensor  # [B, P+G], without masks
    mask: Tensor  # [B, P+G], False on padding
    order: Tensor  # [B, G], step that committed each token, from left to right without a threshold
    positions: Tensor  # [B, C], in the completion; -1: none
    advantage: Tensor  # [B], of the rollout
    weight: Tensor  # [B], the row's share of its rollout's positions

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one row: C at most."""
        return self.positions.shape[1]

    @property
    def padded_length(self) -> int:
        """Tokens of a sequence: P + G."""
        return self.ids.shape[1]


def batch_of(
    policy: Policy, rewarded: Sequence[Rewarded], places: Sequence[Tensor], at_once: int
) -> Positions:
    """Return rows of at most `at_once` positions, in main memory.

    Args:
        places: positions of each completion, in order.
        at_once: C.

    Returns:
        The rows; those of rollouts without places are left out.
    """
    texts = Completions.of(policy, [item.rollout for item in rewarded])
    chunks = [(i, c) for i, part in enumerate(places) for c in part.split(at_once) if len(c)]
    rows = torch.tensor([i for i, _ in chunks], dtype=torch.long)
    positions = torch.full((len(chunks), at_once), -1)
    for row, (_, chunk) in zip(positions, chunks, strict=True):
        row[: len(chunk)] = chunk
    return Positions(
        torch.cat([texts.prompts, texts.targets], 1)[rows],
        texts.mask[rows],
        torch.stack([item.rollout.revealed_at for item in rewarded])[rows],
        positions,
        torch.tensor([item.advantage for item in rewarded])[rows],
        torch.tensor([len(chunk) / len(places[i]) for i, chunk in chunks]),
    )


class Scored(NamedTuple):
    """N positions that are predicted, from left to right in each row."""

    rows: Tensor  # [N]
    targets: Tensor  # [N]
    logits: Tensor  # [N, V]


def position_logits(policy: Policy, batch: Positions, length: int) -> Scored:
    """Return the logits of each position, masked with all committed later: a forward each."""
    rows, columns = true_positions(batch.on_host("positions") >= 0, batch.ids.device)  # [N]
    places, ids = batch.positions[rows, columns], batch.ids[rows]  # [N], [N, P+G]
    completion, order = ids[:, -length:], batch.order[rows]  # [N, G]
    each = torch.arange(len(rows), device=ids.device)
    targets = completion[each, places]
    completion.masked_fill_(order >= order[each, places, None], policy.mask_id)
    mask = batch.attention_mask()
    hidden = policy.hidden(ids, None if mask is None else mask[rows])[:, -length:]  # [N, G, D]
    return Scored(rows, targets, policy.head(hidden[each, places]))
