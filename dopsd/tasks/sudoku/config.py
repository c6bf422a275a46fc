"""Settings of 4x4 Sudoku."""

from typing import Annotated, ClassVar

from pydantic import Field

from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, Whole
from dopsd.tasks.common.config import TaughtTaskConfig


class SudokuConfig(TaughtTaskConfig):
    """Settings of 4x4 Sudoku: puzzles with one solution, in splits that share no solution grid."""

    train: Count = 4096  # training puzzles
    validation: Count = 256  # validation puzzles
    test: Count = 256  # test puzzles
    validation_grids: Annotated[int, Field(ge=1, le=143)] = 56  # of the 288 solution grids
    test_grids: Annotated[int, Field(ge=1, le=143)] = 56  # of the 288 solution grids
    blanks: Annotated[int, Field(ge=1, le=12)] = 8  # blank cells per puzzle, of 16
    seed: Whole = 0  # seed of splits and puzzles
    test_file: str | None = None  # file with columns Puzzle, Solution; `test` of its rows are drawn
    has_gold_answers: ClassVar[bool] = True

    @property
    def files(self) -> dict[str, str]:
        """The local files that the section names, by key."""
        return super().files | ({"test_file": self.test_file} if self.test_file else {})


METRICS = {
    "valid_grid": Metric(
        "share",
        "answers that are a whole valid grid with the given cells",
        "dopsd.tasks.sudoku.task.Sudoku.verify",
        "whole grids right",
    ),
}
