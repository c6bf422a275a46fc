"""Section `train`: the loop, the same for every algorithm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dopsd.core.settings import Betas, Count, Natural, Positive, Section, Share
from dopsd.models.config import AdapterConfig

AUTO = "auto"  # train.micro_batch_states: as memory was measured to hold
GUESS = 8  # micro_batch_states, where a number is needed before anything could be measured


class TrainConfig(Section):
    """The loop: a collect takes `prompts_per_collect` problems; `updates` counts optimizer steps.

    A method's own section may change what stands here: method.NAME.train.
    """

    updates: Count = 500
    prompts_per_collect: Count = 4
    learning_rate: Positive = 5e-6
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_updates: Natural = 1
    betas: Betas = Field([0.9, 0.99])
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    grad_clip: Positive = 0.2
    micro_batch_states: Count | Literal["auto"] = 64
    gradient_checkpointing: bool = False
    checkpoint_every: Count = 25
    max_empty_collects: Count = 50
    collapse_window: Count = 8
    collapse_drop: Share = 0.3
    collapse_errors: Positive = 4.0
    stop_on_collapse: bool = False
    lora: AdapterConfig = AdapterConfig()

    @property
    def states_at_once(self) -> int:
        """micro_batch_states, or a guess at what will be measured."""
        return GUESS if isinstance(self.micro_batch_states, str) else self.micro_batch_states
