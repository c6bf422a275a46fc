"""Settings of JustGRPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dopsd.algorithms.common.config import GroupConfig, TrainOverrides, Weight
from dopsd.core.settings import LARGEST

TopShare = Annotated[float, Field(gt=0, le=1)]


class JustGrpoConfig(GroupConfig):
    """Settings of JustGRPO (arXiv 2601.15165), whose rollouts are made from left to right."""

    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 16  # rollouts per problem
    temperature: Weight = 1.0  # of all rollouts; tokens are scored at 1
    reward: Literal["task", "correct"] = "correct"  # task: the task's reward; correct: 1 or 0
    epsilon: Weight = 1e-4  # added to the standard deviation that divides advantages
    after_end: bool = True  # also score tokens after the first end of text
    positions: Literal["all", "entropy_top"] = "all"  # entropy_top: only the least certain ones
    entropy_share: TopShare = 0.2  # share of a rollout's positions that entropy_top scores
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        prompts_per_collect=64,
        learning_rate=5e-6,
        betas=[0.9, 0.999],
        weight_decay=0.0,
    )

    @property
    def needs_reference(self) -> bool:
        """Whether the method computes with the initial policy: no."""
        return False
