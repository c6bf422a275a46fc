"""VRPO: preference optimisation on right and wrong rollouts, with a low-variance bound.

LLaDA 1.5 (arXiv 2505.19223), section 3; the defaults are its published settings, where there are
any.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import Collected, LossOutput
from dopsd.algorithms.common.batch import PreferenceBatch
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import random_subset
from dopsd.algorithms.vrpo.loss import likelihood_bound, preference
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import left_pad, through_first
from dopsd.rollout.config import CollectorConfig
from dopsd.rollout.groups import RolloutStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.vrpo.config import VrpoConfig
    from dopsd.core.types import Problem, Rollout
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutCollector, RolloutGroup


def build(config: VrpoConfig, context: AlgorithmContext) -> Vrpo:
    """Return the algorithm with its settings and the run's context."""
    t, n = config.temperature, config.attempts
    collector_config = CollectorConfig(
        attempts=n, first_temperature=t, retry_temperature=t, keep="all"
    )
    return Vrpo(config, context.collector(collector_config), context.sequences_at_once)


class Vrpo:
    """Sample, pair the best with the worst rollout, and prefer the one to the other.

    Args:
        config: settings of VRPO.
        collector: samples and scores rollouts.
        max_sequences: sequences of a forward pass that fit into memory.
    """

    normalize_by_all_prompts = False

    def __init__(self, config: VrpoConfig, collector: RolloutCollector, max_sequences: int) -> None:
        self.config, self.collector, self.most = config, collector, max_sequences

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Return one update: a pair of rollouts for each problem that has one."""
        with policy.reference() if self.config.pairs == "initial" else nullcontext():
            groups = self.collector.sample(policy, problems, update, stops=False)
        pairs = [pair for group in groups if (pair := paired(group, self.collector.task.graded))]
        stats = self.collector.summary(policy, [self.collector.scored(group) for group in groups])
        stats.metrics.add("paired", len(pairs), len(groups))
        if self.config.pairs == "initial":  # not a score of the policy in training
            stats.metrics["initial_first_attempt_score"] = stats.metrics.pop("first_attempt_score")
        updates = [[self._pairs(policy, pairs, update)]] if pairs else []
        counters = stats.counters | {"trajectories": 2 * len(pairs)}
        return Collected(updates, RolloutStats(counters, stats.metrics))

    def _pairs(
        self, policy: Policy, pairs: Sequence[tuple[Rollout, Rollout]], update: int
    ) -> PreferenceBatch:
        prompt, mask = left_pad([better.prompt_ids for better, _ in pairs], policy.eos_id)  # [B, P]
        targets = torch.stack(
            [torch.stack([r.completion_ids for r in pair]) for pair in pairs]
        )  # [B, 2, G]
        completion_mask = through_first(targets, policy.eos_id)
        length = completion_mask.sum(-1)  # [B, 2]
        seeds = [
            [key_from("vrpo", self.collector.seed, update, r.problem_id, r.attempt) for r in pair]
            for pair in pairs
        ]
        key = torch.tensor(seeds)[:, :, None]  # [B, 2, 1]
        key = fold_in(key, torch.arange(self.config.draws))  # [B, 2, N]
        loss_mask, size = drawn(key, completion_mask), len(pairs)
        batch = PreferenceBatch(
            prompt, mask, targets, loss_mask, length, torch.zeros(size, 2), torch.ones(size)
        ).to(policy.device)
        with torch.no_grad(), policy.reference():
            batch_size = self.collector.sampling.batch_size
            bounds = torch.cat(
                [
                    likelihood_bound(policy, micro_batch, batch_size)
                    for micro_batch in batch.split(batch_size)
                ]
            )
        return batch.with_tensors(ref_bounds=bounds)

    def loss(self, policy: Policy, batch: PreferenceBatch) -> LossOutput:
        """Return the preference loss and a share of fine-tuning on the preferred completion."""
        bounds = likelihood_bound(policy, batch, self.most)  # [B, 2]
        preference_losses, margin = preference(bounds, batch.ref_bounds, self.config.beta)
        sft_losses = -bounds[:, 0] / batch.length[:, 0]
        totals = {"margin": margin.sum(), "preferred": (margin > 0).float().sum()}
        totals["cross_entropy"] = sft_losses.sum()
        sums = metric_sums(totals, len(batch))
        return LossOutput(
            ((preference_losses + self.config.sft_weight * sft_losses) * batch.weight).sum(), sums
        )


def paired(group: RolloutGroup, is_graded: bool) -> tuple[Rollout, Rollout] | None:
    """Return the best and the worst attempt, the latest and the earliest on ties.

    Args:
        group: the attempts at a problem.
        is_graded: whether answers get partial scores.

    Returns:
        The pair; None if all scores are equal, or no attempt at a task without partial scores is
        correct.
    """
    scores = [score.score for score in group.scores]
    worst = min(range(len(scores)), key=lambda i: (scores[i], i))
    if scores[group.best] <= scores[worst] or not (is_graded or group.scores[group.best].correct):
        return None
    return group.rollouts[group.best], group.rollouts[worst]


def drawn(key: Tensor, completion_mask: Tensor) -> Tensor:
    """Draw l ~ U{1..L} of the completion's L tokens, without replacement, for every key.

    Args:
        key: [B, 2, N].
        completion_mask: [B, 2, G], True up to the end of text.

    Returns:
        [B, 2, N, G], True at the drawn tokens.
    """
    positions = torch.arange(completion_mask.shape[-1] + 1)
    draw = uniform(fold_in(key[..., None], positions))  # [B, 2, N, G+1]
    return random_subset(draw, completion_mask[:, :, None])
