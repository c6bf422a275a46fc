"""Metrics as sums and counts, which add up over micro-batches and ranks; and what one means."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """What a logged number is, for the glossary in the docs."""

    unit: str
    meaning: str  # Markdown, with formulas in LaTeX between dollar signs
    source: str  # dotted name of the function that computes it


class MetricSums(dict[str, tuple[float, float]]):
    """Metrics as (total, count), so that they add up over micro-batches and ranks before they are
    divided.
    """

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        old = self.get(name, (0.0, 0.0))
        self[name] = (old[0] + float(total), old[1] + float(count))

    def merge(self, other: dict[str, tuple[float, float]]) -> None:
        for name, (total, count) in other.items():
            self.add(name, total, count)

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in sorted(self.items()) if count}
