"""Metrics as sums and counts that add up over micro-batches and ranks, and what each metric is."""

from typing import NamedTuple

COUNTED = ("trajectories", "rollouts", "sampled_tokens")  # what a run counts as its cost


class Metric(NamedTuple):
    """What a logged number is, for the glossary in the docs."""

    unit: str
    meaning: str  # Markdown, with formulas in LaTeX between dollar signs
    source: str  # dotted name of the function that computes it
    plain: str = ""  # the meaning in a sentence without formulas; empty: `meaning` has none


class MetricSums(dict[str, tuple[float, float]]):
    """Metrics as {name: (total, count)}, divided only after all parts are added."""

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        """Add `total`, a sum over `count` items, to a metric."""
        old = self.get(name, (0.0, 0.0))
        self[name] = (old[0] + float(total), old[1] + float(count))

    def merge(self, other: dict[str, tuple[float, float]]) -> None:
        """Add the sums of another part, such as another rank."""
        for name, (total, count) in other.items():
            self.add(name, total, count)

    def means(self) -> dict[str, float]:
        """Return total / count of every metric with a count, by name."""
        return {name: total / count for name, (total, count) in sorted(self.items()) if count}
