"""Settings of diffu-GRPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dopsd.algorithms.common.config import AlgorithmConfig, TrainOverrides, Weight
from dopsd.core.settings import LARGEST, Count, Positive, Share


class DiffuGrpoConfig(AlgorithmConfig):
    """Policy gradient with group-relative advantages for masked diffusion (d1, arXiv 2504.12216,
    section 3.2).
    """

    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 6
    temperature: Weight = 0.9
    iterations: Count = (
        12  # updates a collect feeds, each with its own masks of the prompt; 8 for planning tasks
    )
    clip_range: Positive = 0.5
    kl_weight: Weight = 0.04
    prompt_mask: Share = 0.15
    reward: Literal["task", "correct"] = "task"
    train: TrainOverrides = TrainOverrides(learning_rate=3e-6, prompts_per_collect=16)
