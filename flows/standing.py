"""Which machines of a comparison can be trusted with more runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

FAULTS = 2  # failures in a row after which a machine gets no more runs


class Standing:
    """Counts each machine's failures since its last finished run.

    A machine on which runs fail at once is free again at once, and would use up all runs while the
    others train. Whether machine or run is at fault shows when another machine has tried the run.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()

    def count(self, name: str) -> None:
        """Count a failure of a machine."""
        self.failures[name] += 1

    def clear(self, name: str) -> None:
        """Forget the failures of a machine that finished a run."""
        del self.failures[name]

    def forgive(self, names: Iterable[str]) -> None:
        """Take back one failure of each of these machines, since the run was at fault."""
        self.failures -= Counter([*names])

    def is_fit(self, name: str, able: Collection[str]) -> bool:
        """Tell whether a machine may get runs: not after failures in a row, if others may.

        Args:
            name: The machine.
            able: All machines that are there.
        """
        return self.failures[name] < FAULTS or all(self.failures[n] >= FAULTS for n in able)

    def has_better(self, name: str, able: Collection[str]) -> bool:
        """Tell whether this machine failed last, and another one that is there did not."""
        return self.failures[name] > 0 and any(not self.failures[other] for other in able)
