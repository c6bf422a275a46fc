"""Settings of wd1."""

from __future__ import annotations

from dopsd.algorithms.common.config import GroupConfig, TrainOverrides
from dopsd.core.settings import Count, Share


class Wd1Config(GroupConfig):
    """Settings of wd1, a weighted log-likelihood without a ratio (arXiv 2507.08838)."""

    iterations: Count = 8  # updates per collect, each with new prompt masks
    prompt_mask: Share = 0.15  # share of prompt tokens masked in each update
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, prompts_per_collect=8
    )

    @property
    def needs_reference(self) -> bool:
        """Whether the method computes with the initial policy: no."""
        return False
