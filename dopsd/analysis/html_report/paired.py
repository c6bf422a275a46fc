"""What paired scores of the base and a trained model on the same problems allow to conclude."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dopsd.core.statistics import sign_test

FEW = 10  # changed answers, below which a bootstrap interval is too narrow
LEVEL = 0.05  # of the sign test


def excludes_zero(interval: Sequence[float]) -> bool:
    """Return whether 0 is outside an interval."""
    return interval[0] > 0 or interval[1] < 0


class Outcomes(NamedTuple):
    """Number of problems on which the trained model scores better, equally and worse."""

    better: int
    equal: int
    worse: int

    @property
    def changed(self) -> int:
        """Problems with another score."""
        return self.better + self.worse

    def tells_apart(self, interval: Sequence[float]) -> bool:
        """Return whether the two models differ by more than the choice of problems explains.

        The interval excludes 0, and where few answers changed, the sign test agrees: 4 better and 0
        worse leave nearly every resample above 0, and are still the result of even chances one time
        in eight.
        """
        is_enough = self.changed >= FEW or sign_test(self.better, self.worse) < LEVEL
        return excludes_zero(interval) and is_enough

    def meaning(self, difference: float, interval: Sequence[float]) -> str:
        """Return what a paired difference allows to conclude, in sentences."""
        counts = f"better on {self.better} problems, equal on {self.equal}, worse on {self.worse}"
        if not self.changed:
            return "Every answer scores as the base's, so this test cannot tell the two apart."
        if self.tells_apart(interval):
            change = "gain" if difference > 0 else "loss"
            text = f"The interval excludes 0: the choice of problems does not explain the {change}."
            return f"{text} The score is {counts}. Other seeds may give other values."
        if self.changed < FEW:
            chance = f"sign test: p = {sign_test(self.better, self.worse):.2f}"
            text = f"Only {self.changed} of {sum(self)} scores changed"
            return f"{text}, which chance can explain ({chance}). The score is {counts}."
        text = "The interval includes 0, so this test cannot tell the two apart."
        return f"{text} The score is {counts}."


def outcomes(comparison: dict[str, Any]) -> Outcomes:
    """Return the outcomes of a protocol of `test/paired.json`."""
    base, best = (comparison[side]["per_problem"] for side in ("base", "best"))
    gaps = [best[name] - score for name, score in base.items()]
    better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return Outcomes(better, len(gaps) - better - worse, worse)
