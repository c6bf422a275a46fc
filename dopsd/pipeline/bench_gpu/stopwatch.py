"""Milliseconds and peak memory of work on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

GIGA = 1e9


@dataclass(frozen=True)
class Figures:
    """What one piece of work took.

    Attributes:
        ms: milliseconds.
        peak_gb: most gigabytes allocated at once.
        limits: of a modelled GPU: milliseconds by what limited the kernels (`peak`, `bandwidth`,
            `launch`).
    """

    ms: float
    peak_gb: float
    limits: dict[str, float] = field(default_factory=dict)


class Stopwatch:
    """Measure the current GPU with events; a pretended GPU answers with modelled times."""

    repeats = 3  # runs of each case, after a warm-up

    def start(self) -> None:
        """Begin when the GPU has finished what it does."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.begin = torch.cuda.Event(enable_timing=True)
        self.begin.record()

    def stop(self, units: int = 1) -> Figures:
        """Return the figures since `start`, milliseconds of each of so many units."""
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()
        ms = self.begin.elapsed_time(end) / units
        return Figures(ms, torch.cuda.max_memory_allocated() / GIGA)

    def median(self, work: Callable[[], Figures]) -> Figures:
        """Return the run of median time, with the largest peak of all runs; the first is a warm-up.

        Args:
            work: starts and stops this stopwatch.
        """
        runs = [work() for _ in range(1 + self.repeats)][1:]
        middle = sorted(runs, key=lambda run: run.ms)[len(runs) // 2]
        return Figures(middle.ms, max(run.peak_gb for run in runs), middle.limits)
