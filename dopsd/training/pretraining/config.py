"""Section `pretrain`: the embedded model's shape and its pretraining."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dopsd.core.settings import Betas, Count, Distinct, Natural, Positive, Share, Whole
from dopsd.models.config import EmbeddedShape


class PretrainConfig(EmbeddedShape):
    """The embedded model's shape and its masked-diffusion pretraining on worked solutions.

    `tasks` is empty if the base is a downloaded checkpoint: there is nothing to pretrain then.
    `recipe` stands for the code: raise it when pretraining's numbers change on purpose
    (tests/unit/training/test_recipes.py checks them).
    """

    # the tasks that have a base of their own, made from their worked solutions
    tasks: Annotated[list[Literal["sudoku", "countdown", "chains"]], Distinct] = Field([])
    recipe: Count = 1  # version of the pretraining code
    updates: Count = 800  # optimizer steps
    batch_size: Count = 64  # sequences in an update
    learning_rate: Positive = 3e-3  # peak, after warm-up; then decays linearly to 5%
    betas: Betas = Field([0.9, 0.98])  # of AdamW
    warmup_updates: Natural = 50  # updates of linear warm-up
    weight_decay: Annotated[float, Field(ge=0)] = 0.01  # of AdamW
    grad_clip: Positive = 1.0  # largest gradient norm
    careful_share: Share = 0.5  # share of correct worked solutions
    seed: Whole = 0  # of the weights, the batches and the masks


@dataclass(frozen=True)
class BaseSettings:
    """The settings that pretraining the embedded base depends on."""

    shape: PretrainConfig
    gen_length: int  # tokens of a completion, with its padding
    prompt_style: str  # model.prompt_style
