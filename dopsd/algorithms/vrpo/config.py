"""Settings of VRPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dopsd.algorithms.common.config import AlgorithmConfig, TrainOverrides, Weight
from dopsd.core.settings import LARGEST, Count, Positive


class VrpoConfig(AlgorithmConfig):
    """Preferences with the bound's variance reduced (LLaDA 1.5, arXiv 2505.19223): pairs of a right
    and a wrong rollout.

    How pairs are made, `attempts`, `temperature` and `pairs`, is ours; so is that a graded task
    pairs its best with its worst, that the fine-tuning term is the bound a token, and that what
    follows the first end of text is masked.
    """

    attempts: Annotated[int, Field(ge=2, le=LARGEST)] = 8
    temperature: Weight = 0.9
    pairs: Literal["initial", "current"] = "initial"  # the policy that samples them
    beta: Positive = 0.2
    draws: Count = 8  # masks an estimate, the same for policy and reference
    sft_weight: Weight = 0.05
    train: TrainOverrides = TrainOverrides(
        learning_rate=5e-7,
        schedule="cosine",
        warmup_updates=15,
        betas=[0.9, 0.95],
        weight_decay=0.01,
        prompts_per_collect=64,
    )

    @property
    def has_uneven_forwards(self) -> bool:
        return True
