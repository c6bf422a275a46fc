"""wd1: a weighted log-likelihood, which needs neither an old policy nor a reference.

wd1 (arXiv 2507.08838); the defaults are those of the published code. The log-probability of a
completion is the sum over its tokens, from one forward of the fully masked completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.base import AlgorithmContext, LossOutput
from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.groups import GroupMethod, Rewarded, group_collector
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import Completions, Views, rollout_keys, view_logps

if TYPE_CHECKING:
    from dopsd.algorithms.wd1.config import Wd1Config
    from dopsd.models.policy import Policy


def build(config: Wd1Config, context: AlgorithmContext) -> Wd1:
    """Return the algorithm with its settings and the run's context."""
    return Wd1(config, group_collector(config, context), context.sequences_at_once)


class Wd1(GroupMethod):
    """Raise the likelihood of the better completions of a group, and lower that of the worse."""

    config: Wd1Config
    normalize_by_all_prompts = True  # the mean over groups: weights of a group add up to 0

    def taught(self, group: list[Rewarded]) -> list[Rewarded]:
        """Put weights in place of advantages, and leave out completions of weight 0.

        Such are those of a group with one reward.
        """
        weights = group_weights([item.advantage for item in group])
        pairs = zip(group, weights, strict=True)
        return [replace(item, advantage=weight) for item, weight in pairs if weight]

    def batch(
        self, policy: Policy, taught: Sequence[Rewarded], collect: int, iteration: int
    ) -> MaskedTexts:
        """Mask completions fully, and prompt tokens with probability `prompt_mask`."""
        rollouts = [item.rollout for item in taught]
        texts, seed = Completions.of(policy, rollouts), self.collector.seed
        keys = rollout_keys(rollouts, "wd1", seed, collect, iteration)
        prompts = texts.masked_prompts(keys, self.config.prompt_mask, policy.mask_id)
        weight = torch.tensor([item.advantage for item in taught])
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
