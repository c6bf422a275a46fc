"""wd1: a weighted log-likelihood, which needs neither an old policy nor a reference.

wd1 (arXiv 2507.08838); the defaults are those of the published code. The log-probability of a
completion is the sum over its tokens, from one forward of the fully masked completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.groups import RewardedGroups, group_collector
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import Completions, Views, rollout_keys, view_logps
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.collector import RolloutCollector, RolloutStats

if TYPE_CHECKING:
    from dopsd.algorithms.wd1.config import Wd1Config
    from dopsd.models.policy import Policy


def build(config: Wd1Config, context: AlgorithmContext) -> Wd1:
    """Return the algorithm with its settings and the run's context."""
    return Wd1(config, group_collector(config, context))


class Wd1:
    """Raise the likelihood of the better completions of a group, and lower that of the worse."""

    normalize_by_all_prompts = True  # the mean over groups: weights of a group add up to 0

    def __init__(self, config: Wd1Config, collector: RolloutCollector) -> None:
        self.config, self.collector = config, collector
        self.groups = RewardedGroups(config, collector)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and reward groups, and return one update per inner iteration.

        Completions of weight 0 are left out, such as those of a group with one reward.
        """
        groups, stats = self.groups.sample(policy, problems, collect)
        weighted = []
        for group in groups:
            weights = group_weights([item.advantage for item in group])
            pairs = zip(group, weights, strict=True)
            weighted += [(item.rollout, weight) for item, weight in pairs if weight]
        updates = [
            [self._batch(policy, weighted, collect, iteration)]
            for iteration in range(self.config.iterations if weighted else 0)
        ]
        counters = stats.counters | {"trajectories": len(weighted)}
        return Collected(updates, RolloutStats(counters, stats.metrics))

    def _batch(
        self,
        policy: Policy,
        weighted: Sequence[tuple[Rollout, float]],
        collect: int,
        iteration: int,
    ) -> MaskedTexts:
        """Mask completions fully, and prompt tokens with probability `prompt_mask`."""
        rollouts = [rollout for rollout, _ in weighted]
        texts, seed = Completions.of(policy, rollouts), self.collector.seed
        keys = rollout_keys(rollouts, "wd1", seed, collect, iteration)
        prompts = texts.masked_prompts(keys, self.config.prompt_mask, policy.mask_id)
        weight = torch.tensor([weight for _, weight in weighted])
        return MaskedTexts(
            torch.cat([prompts, torch.full_like(texts.targets, policy.mask_id)], 1),
            texts.mask,
            texts.targets,
            texts.completion_mask,
            torch.ones_like(weight),
            weight,
        ).to(policy.device)

    def loss(self, policy: Policy, batch: MaskedTexts) -> LossOutput:
        """Return -sum w S over completions; S is the sum of ln p through the end of text."""
        loss_mask = batch.on_host("loss_mask")
        views = Views(batch.ids[:, None], batch.attention_mask(), batch.targets, loss_mask[:, None])
        logps = view_logps(policy, views, len(batch)).sum((1, 2))  # [B]
        sums = metric_sums({"logp": logps.sum()}, loss_mask.sum().item())
        return LossOutput(-(batch.weight * logps).sum(), sums)


def group_weights(advantages: Sequence[float]) -> list[float]:
    """Return softmax(A) - softmax(-A), the weight of each ln p in the gain of its group.

    Args:
        advantages: A, of all completions of a problem.

    Returns:
        A weight for each, which add up to 0; all exactly 0 if the advantages are equal.
    """
    compared = torch.tensor(advantages, dtype=torch.float64)
    weights: list[float] = (compared.softmax(0) - (-compared).softmax(0)).tolist()
    return weights
