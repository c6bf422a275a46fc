"""Rejection fine-tuning: masked-diffusion cross-entropy on the rollouts that d-OPSD would keep.

This control separates the teacher's part of a gain from the filter's: the same sampling and
selection, without a teacher. The loss is LLaDA's fine-tuning bound (arXiv 2502.09992, Eq. 5); the
settings are this project's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.losses import masked_diffusion_loss, metric_sums
from dopsd.algorithms.common.masking import MaskedText, masked
from dopsd.core.rng import key_from
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.collector import RolloutCollector

if TYPE_CHECKING:
    from dopsd.algorithms.rft.config import RftConfig
    from dopsd.models.policy import Policy


def build(config: RftConfig, context: AlgorithmContext) -> Rft:
    """Return the algorithm with its settings and the run's context."""
    return Rft(config, context.collector(config))


class Rft:
    """Sample up to pass@k, keep, and predict the kept tokens from random masks."""

    def __init__(self, config: RftConfig, collector: RolloutCollector) -> None:
        self.config, self.collector = config, collector
        self.normalize_by_all_prompts = config.denominator == "prompts"

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and keep rollouts, and return updates with new masks each."""
        scored = self.collector.collect(policy, problems, collect)
        stats = self.collector.summary(policy, scored)
        rollouts = [item.best for item in scored if item.is_kept]
        if not rollouts:
            return Collected([] if self.config.skip_empty else [[]], stats)
        updates = range(self.config.updates_per_collect)
        return Collected([[self._masked(policy, rollouts, collect, n)] for n in updates], stats)

    def _masked(
        self, policy: Policy, rollouts: list[Rollout], collect: int, number: int
    ) -> MaskedTexts:
        """Mask each kept rollout `draws_per_rollout` times."""
        draws, seed = self.config.draws_per_rollout, self.collector.seed
        keys = (
            (r, key_from("rft", seed, collect, number, r.problem_id, n))
            for r in rollouts
            for n in range(draws)
        )
        return masked(
            policy, [MaskedText(r.prompt_ids, r.completion_ids, key, 1 / draws) for r, key in keys]
        )

    def loss(self, policy: Policy, batch: MaskedTexts) -> LossOutput:
        """Return the masked-diffusion bound of each row, weighted and summed."""
        losses = masked_diffusion_loss(policy, batch)  # [B]
        sums = metric_sums({"cross_entropy": losses.sum()}, len(batch))
        return LossOutput((losses * batch.weight).sum(), sums)
