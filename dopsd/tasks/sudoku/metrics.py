"""Figures that sudoku reports in addition to the accuracy."""

from __future__ import annotations

from dopsd.core.metrics import Metric

METRICS = {
    "valid_grid": Metric(
        "share",
        "answers that are a whole valid grid with the given cells",
        "dopsd.tasks.sudoku.task.Sudoku.verify",
    ),
}
