"""The range of a chart's y axis, which a collapsed run must not stretch."""

from __future__ import annotations

from math import isfinite
from statistics import median, median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OF_RUN = 10  # times a run's median size: larger values of this run are cut
OF_RUNS = 100  # times the median of these medians: a run beyond is cut as a whole
MARGIN = 0.05  # of the range, above and below


def readable_range(histories: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return the lowest and highest value that a chart shows; None if all values fit.

    Losses of two methods may differ by a factor of 50, and a chart shows both. Values far from
    those of the same run, and runs far from all others, are outside.

    Args:
        histories: the values of each run.
    """
    runs = [[value for value in history if isfinite(value)] for history in histories]
    sizes = [median(map(abs, run)) if run else 0.0 for run in runs]
    positive_sizes = [size for size in sizes if size]
    limit = OF_RUNS * median_low(positive_sizes) if positive_sizes else 0.0
    shown = [
        value
        for run, size in zip(runs, sizes, strict=True)
        for value in run
        if size <= limit and (not size or abs(value) <= OF_RUN * size)
    ]
    if len(shown) == sum(map(len, runs)):
        return None
    margin = MARGIN * (max(shown) - min(shown)) or 1.0
    return min(shown) - margin, max(shown) + margin
