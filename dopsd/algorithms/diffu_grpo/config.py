"""Settings of diffu-GRPO."""

from __future__ import annotations

from dopsd.algorithms.common.config import GroupConfig, TrainOverrides, Weight
from dopsd.core.settings import Count, Positive, Share


class DiffuGrpoConfig(GroupConfig):
    """Settings of diffu-GRPO, a group-relative policy gradient (d1, arXiv 2504.12216, 3.2)."""

    iterations: Count = 12  # updates per collect, each with new prompt masks; planning tasks: 8
    clip_range: Positive = 0.5  # epsilon: the probability ratio is clipped to 1 +- epsilon
    kl_weight: Weight = 0.04  # weight of the KL penalty to the initial policy
    prompt_mask: Share = 0.15  # share of prompt tokens masked in each update
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, prompts_per_collect=16
    )

    @property
    def updates_of_collect(self) -> int:
        """Updates that follow a collect."""
        return self.iterations
