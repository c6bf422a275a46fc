"""Section `pretrain`: the embedded model's shape and its pretraining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dopsd.core.settings import Betas, Count, Natural, Positive, Share, Whole
from dopsd.models.config import EmbeddedShape


class PretrainConfig(EmbeddedShape):
    """The embedded model's shape and its masked-diffusion pretraining on worked solutions of a
    task.

    `tasks` is empty where the base is a downloaded checkpoint: then there is nothing to pretrain.
    `recipe` stands for the code: raise it when pretraining's numbers change on purpose
    (tests/unit/training/test_recipes.py holds them).
    """

    tasks: list[Literal["sudoku"]] = Field([], max_length=1)
    recipe: Count = 1
    updates: Count = 800
    batch_size: Count = 64
    learning_rate: Positive = 3e-3
    betas: Betas = Field([0.9, 0.98])
    warmup_updates: Natural = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    grad_clip: Positive = 1.0
    careful_share: Share = 0.5
    seed: Whole = 0


@dataclass(frozen=True)
class BaseSettings:
    """What pretraining the embedded base depends on, beside its data."""

    shape: PretrainConfig
    gen_length: int  # tokens of a completion, with its padding
    prompt_style: str
