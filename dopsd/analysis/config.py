"""Sections `ablate` and `compare`: what is laid side by side beyond the pipeline."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, model_validator

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.settings import Name, Natural, Section
from dopsd.tasks.registry import TASKS


class CompareConfig(Section):
    """`dopsd compare` says what reaching the best of this method cost the others."""

    baseline: str = "diffu_grpo"


class AblateConfig(Section):
    """One method's settings, a few changed at a time: what each variant changes, and which stand in
    one table.
    """

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
                "variants.default: expected {}: the settings as they stand in the method's registry"
            )
        invalid = [name for name in self.variants if not re.fullmatch("[a-z0-9_]{1,100}", name)]
        if invalid:
            raise ValueError(
                f"variants: {invalid[0]!r}: expected lowercase letters, digits and _ : it names"
                " folders and stages"
            )
        for key, value, registry in (
            ("task", self.task, TASKS),
            ("method", self.method, ALGORITHMS),
        ):
            if value not in registry.names:
                raise ValueError(f"{key}: {value}: unknown; there is {', '.join(registry.names)}")
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
