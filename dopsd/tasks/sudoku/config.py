"""Settings of 4x4 Sudoku."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Count, Whole
from dopsd.tasks.common.config import TaskConfig

GRIDS = 288  # 4x4 solutions


class SudokuConfig(TaskConfig):
    """4x4 puzzles with one solution; counts are puzzles, `*_grids` solution grids (of 288) that a
    split owns.
    """

    train: Count = 4096
    validation: Count = 256
    test: Count = 256
    validation_grids: Annotated[int, Field(ge=1, le=143)] = 56
    test_grids: Annotated[int, Field(ge=1, le=143)] = 56
    blanks: Annotated[int, Field(ge=1, le=12)] = 8
    seed: Whole = 0
    test_file: str | None = None

    @model_validator(mode="after")
    def grids_are_left(self) -> Self:
        if self.validation_grids + self.test_grids >= GRIDS:
            raise ValueError(
                "validation_grids and test_grids must leave grids of the 288 for training"
            )
        return self
