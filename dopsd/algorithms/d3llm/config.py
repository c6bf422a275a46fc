"""Settings of d3LLM."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dopsd.algorithms.common.config import AlgorithmConfig, TrainOverrides, Weight
from dopsd.core.settings import Count, Positive
from dopsd.models.config import AdapterConfig


class D3llmConfig(AlgorithmConfig):
    """Off-policy self-distillation along recorded trajectories (d3LLM); block and share of masks
    grow over training.
    """

    tries: Count = 5  # of a recording: greedy, then warmer each time, until the answer is right
    warmer: Positive = 0.1
    first_block: Count = 16
    last_block: Count = 32
    most_masked: Annotated[float, Field(gt=0, le=1)] = 0.8
    entropy_weight: Weight = 2.0
    entropy_temperature: Positive = 0.5
    train: TrainOverrides = TrainOverrides(
        learning_rate=2e-5, prompts_per_collect=64, lora=AdapterConfig(r=256, alpha=256)
    )

    @property
    def depends_on_length(self) -> bool:
        return True

    @property
    def wants_solutions(self) -> bool:
        return True
