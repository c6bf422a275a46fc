"""What `dopsd bench-gpu` found: the parts, and how one that fails is kept."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dopsd.pipeline.bench_gpu.modelled import ratios

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.pipeline.bench_gpu.stopwatch import Figures

LONGEST = 2000  # characters of an error


class Status(StrEnum):
    """What became of a part."""

    DONE = "done"
    FAILED = "failed"
    LEFT_OUT = "left out"


@dataclass
class Part:
    """One part of the command.

    Attributes:
        name: its name in tables.
        group: `checks`, `figures` or `ranks`.
        status: what became of it.
        reason: why it failed or was left out.
        found: what it measured.
        modelled: what the model of a GPU says.
        ratios: measured / modelled.
        seconds: how long it took.
    """

    name: str
    group: str
    status: Status = Status.DONE
    reason: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    modelled: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def attempt(self, work: Callable[[], dict[str, Any]]) -> Part:
        """Do the work; a failure is kept as the reason, with where it happened."""
        started = time.monotonic()
        try:
            self.found = work()
        except Exception as error:  # whatever it is, the other parts go on
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}"[:LONGEST]
            self.status, self.reason = Status.FAILED, f"{text} ({last.name}, line {last.lineno})"
        self.seconds = time.monotonic() - started
        return self

    def leave_out(self, reason: str) -> Part:
        """Keep why the part was not tried."""
        self.status, self.reason = Status.LEFT_OUT, reason
        return self

    def compare(self, measured: Figures, expected: Figures) -> None:
        """Add what the model says, and the ratios."""
        self.modelled = {"ms": expected.ms, "peak_gb": expected.peak_gb}
        self.ratios = ratios(measured, expected)


@dataclass
class Results:
    """All that the command found.

    Attributes:
        machine: the GPU, packages and settings.
        parts: the parts so far.
        is_complete: whether it came to its end.
        seconds: how long it took.
    """

    machine: dict[str, Any]
    parts: list[Part] = field(default_factory=list)
    is_complete: bool = False
    seconds: float = 0.0

    def of(self, group: str) -> list[Part]:
        """Return the parts of a group."""
        return [part for part in self.parts if part.group == group]

    def as_json(self) -> dict[str, Any]:
        """Return everything as values of JSON."""
        return asdict(self)
