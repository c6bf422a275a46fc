"""Sections `verify_teacher`, `ablate` and `compare`: what is run and laid side by side beyond the pipeline."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dopsd.config.base import Count, Name, Natural, Section, Share
from dopsd.config.data import TasksConfig
from dopsd.config.methods import AlgorithmsConfig


class CompareConfig(Section):
    """`dopsd compare` says what reaching the best of this method cost the others."""

    baseline: str = "diffu_grpo"


class AblateConfig(Section):
    """One method's settings, a few changed at a time: what each variant changes, and which stand in one table."""

    task: str = "sudoku"
    method: str = "d_opsd"
    seeds: list[Natural] = Field([0], min_length=1)
    run: list[str] = Field([])
    variants: dict[str, dict[str, Any]] = Field({"default": {}}, min_length=1)
    tables: dict[Name, list[str]] = Field({})

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        if self.variants.get("default") != {}:
            raise ValueError(
                "variants.default: expected {}: the settings as they stand in the method's section"
            )
        odd = [name for name in self.variants if not re.fullmatch("[a-z0-9_]{1,100}", name)]
        if odd:
            raise ValueError(
                f"variants: {odd[0]!r}: expected lowercase letters, digits and _ : it names folders and stages"
            )
        for key, value, section in (
            ("task", self.task, TasksConfig),
            ("method", self.method, AlgorithmsConfig),
        ):
            if value not in section.model_fields:
                raise ValueError(
                    f"{key}: {value}: unknown; there is {', '.join(sorted(section.model_fields))}"
                )
        lists = {f"tables.{name}": variants for name, variants in self.tables.items()} | {
            "run": self.run
        }
        for name, variants in lists.items():
            unknown = [variant for variant in variants if variant not in self.variants]
            if unknown:
                raise ValueError(
                    f"{name}: expected names of ablate.variants, found {', '.join(unknown)}"
                )
        return self


class VerifyTeacherConfig(Section):
    """Is the base better when it sees part of its own answer? `problems` training questions (paper, Table 1)."""

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
