"""Sections `evaluate`, `select` and `verify_teacher`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.core.settings import LARGEST, Count, Name, Section, Share
from dopsd.rollout.config import EvalProtocol


class VerifyTeacherConfig(Section):
    """Is the base better when it sees part of its own answer? `problems` training questions (paper,
    Table 1).
    """

    tasks: list[str] = Field([])
    problems: Count = 500
    attempts: Count = 8
    temperature: Annotated[float, Field(ge=0)] = 1.0
    reveal_ratios: list[Share] = Field([0.10, 0.25, 0.50], min_length=1)

    @model_validator(mode="after")
    def ratios_differ(self) -> Self:
        if len({f"{ratio:.2f}" for ratio in self.reveal_ratios}) < len(self.reveal_ratios):
            raise ValueError(
                "reveal_ratios must differ in their first two decimals, which name the rows"
            )
        return self


class EvaluateConfig(Section):
    """How checkpoints are compared: `protocols` are decoding settings by name; selection uses
    select.protocol.
    """

    protocols: dict[Name, EvalProtocol] = Field(min_length=1)
    bootstrap: Annotated[int, Field(ge=100, le=LARGEST)] = 2000


class SelectConfig(Section):
    """Checkpoints are compared on this split under this one of evaluate.protocols."""

    split: Literal["validation", "test"] = "validation"
    protocol: str = "greedy"
