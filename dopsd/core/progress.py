"""Progress of long work: a bar on a terminal, plain lines elsewhere.

The state is also written to work/<stage>.json, for other processes to read.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Self

from dopsd.core.errors import FULL
from dopsd.core.files import WORK, write_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn

PLAIN_EVERY = 10.0  # seconds between plain lines
SLOW = 0.1  # units a second below which the seconds of a unit are shown
STEADY = 2  # steps from which on the rate tells the time left
REMEMBERED = 100  # steps whose times tell what is usual


def table_console() -> Console:
    """Return a console for tables, so wide in a file or pipe that no cell is cut."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200)


def is_main_rank() -> bool:
    """Return whether this is the first process of the run (RANK 0, or no RANK)."""
    return os.environ.get("RANK", "0") == "0"


CUT: dict[int, OSError] = {}  # by file descriptor: why a part of the output was dropped


class LastingFile(io.FileIO):
    """An output stream that drops what it cannot write: no reader is left, or the disk is full."""

    def write(self, data: ReadableBuffer) -> int:
        """Write the bytes, and report them as written even if the write fails."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno in FULL:
                CUT[self.fileno()] = error
        return len(memoryview(data))


def outlive_readers() -> None:
    """Keep errors of standard output and standard error from ending this process.

    A stream that is closed from the start becomes the null device, and no file takes its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if number:
            binary = io.BufferedWriter(LastingFile(number, "w", closefd=False))
            stream = io.TextIOWrapper(binary, errors="backslashreplace", line_buffering=True)
            setattr(sys, name, stream)


def refuse_cut_output() -> None:
    """Raise the error of standard output, if the disk behind it was full."""
    sys.stdout.flush()
    if error := CUT.get(1):
        raise OSError(error.errno, error.strerror, "standard output")


def log(text: str) -> None:
    """Write one line to standard error, from the first rank only."""
    if is_main_rank():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Progress:
    """Count `done` of `total` units; use as a context manager.

    Args:
        stage: name of the work, and of its file work/<stage>.json.
        unit: name of one unit, in the singular.
        scratch: folder of the work's state, recorded in the file.
    """

    def __init__(self, stage: str, total: int, unit: str, scratch: str = "") -> None:
        self.stage, self.total, self.unit, self.scratch = stage, total, unit, scratch
        self.done = self.first = 0
        self.steps = 0  # with finished units, since this process started
        self.started = self.logged = self.moved = time.monotonic()
        self.times: deque[float] = deque(maxlen=REMEMBERED)  # seconds of the last steps
        self.bar: Bar | None = None

    def __enter__(self) -> Self:
        if is_main_rank() and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns: list[str | ProgressColumn] = [
                "[bold]{task.description}",
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
            ]
            note = TextColumn("{task.fields[note]}")
            self.bar = Bar(
                *columns, TimeRemainingColumn(), note, console=Console(stderr=True), transient=False
            )
            self.bar.start()
            self.line = self.bar.add_task(self.stage, total=self.total, rate="", note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()
        self._write()

    def resume_at(self, done: int) -> None:
        """Start at `done` units, which do not count for the rate."""
        self.done = self.first = done
        self.moved = time.monotonic()
        self._write()

    def step(self, units: int = 1, note: str = "") -> None:
        """Add finished units and show the new state."""
        self.done += units
        self.steps += units > 0
        if not is_main_rank():
            return
        now = time.monotonic()
        if units:
            self.times.append(now - self.moved)
            self.moved = now
        if self.bar:
            self.bar.update(
                self.line,
                completed=self.done,
                rate=self._speed,
                note=note,
            )
        elif now - self.logged > PLAIN_EVERY or (units and self.done == self.total):
            self.logged = now
            speed = f", {self._speed}{self._remaining}" if self.rate else ""
            log(f"{self.stage}: {self.done}/{self.total} {self.unit}s{speed}  {note}".rstrip())
        self._write()

    @property
    def _speed(self) -> str:
        """Return units a second, or seconds a unit where they are few; empty before the first."""
        if not self.rate:
            return ""
        return f"{self.rate:.2f}/s" if self.rate >= SLOW else f"{1 / self.rate:.0f} s each"

    @property
    def _remaining(self) -> str:
        """Return the time left; nothing at the first step, whose rate includes the start-up."""
        is_known = self.steps >= STEADY
        return f", {_clock((self.total - self.done) / self.rate)} left" if is_known else ""

    @property
    def rate(self) -> float:
        """Units per second since this process started."""
        return (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not hide an error elsewhere
            if not is_main_rank():
                return
            state = {
                "done": self.done,
                "total": self.total,
                "rate": round(self.rate, 4),
                "steps": self.steps,
                "scratch": self.scratch,
                "usual": round(median(self.times), 3) if self.times else 0.0,
                "stalled_after": round(stalled_after(self.times), 1),
            }
            write_json(WORK / f"{self.stage}.json", state, is_shared=True)


TIMES = 10  # the median time of a step
FLOOR = 60.0  # seconds: a short pause is no stall, however fast the steps are
FEWEST = 5  # steps from which on their times are known
UNKNOWN = 3600.0  # seconds, with fewer steps: the first one also loads and compiles


def stalled_after(seconds: Sequence[float]) -> float:
    """Return the seconds without a step after which work counts as stalled.

    That is ten times the median, and more than twice the longest step so far: a collect of rollouts
    or a save takes as long as many updates.
    """
    if len(seconds) < FEWEST:
        return UNKNOWN
    return max(FLOOR, TIMES * median(seconds), 2 * max(seconds))
