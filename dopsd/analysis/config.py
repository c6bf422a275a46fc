"""Sections `ablate` and `compare`: comparisons beyond the pipeline's runs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import unknown
from dopsd.core.settings import Distinct, Name, Natural, Section


class CompareConfig(Section):
    """Settings of `dopsd compare`."""

    baseline: str = "diffu_grpo"  # the method whose best accuracy the others have to reach


class AblateConfig(Section):
    """Variants of one method with a few settings changed, and the tables that compare them."""

    task: str = "sudoku"  # the task of all variants
    method: str = "d_opsd"  # the method that the variants change
    seeds: Annotated[list[Natural], Distinct] = Field(
        [0], min_length=1
    )  # one run of each variant for each seed
    run: Annotated[list[str], Distinct] = Field([])  # variants that `dvc repro` runs too
    variants: dict[str, dict[str, Any]] = Field({"default": {}}, min_length=1)  # changes by name
    tables: dict[Name, Annotated[list[str], Distinct]] = Field({})  # variants of each table

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        """Check the names of the method and all variants; section data has the task."""
        if self.variants.get("default") != {}:
            raise ValueError(
                "variants.default: expected {}, the unchanged settings of the method's section"
            )
        invalid = [name for name in self.variants if not re.fullmatch("[a-z0-9_]{1,100}", name)]
        if invalid:
            raise ValueError(
                f"variants: {invalid[0]!r}: expected lowercase letters, digits and _ in the name of"
                " a folder and a stage"
            )
        if self.method not in ALGORITHMS.names:
            raise ValueError(unknown(f"method: {self.method}", ALGORITHMS.names))
        lists = {f"tables.{name}": variants for name, variants in self.tables.items()} | {
            "run": self.run
        }
        for name, variants in lists.items():
            invalid = [variant for variant in variants if variant not in self.variants]
            if invalid:
                raise ValueError(
                    f"{name}: expected names of ablate.variants, found {', '.join(invalid)};"
                    " ablate.tables and ablate.run belong to ablate.variants: set them together,"
                    " such as --set 'ablate.tables={TABLE: [NAME]}' --set 'ablate.run=[]'"
                )
        return self
