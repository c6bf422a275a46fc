"""Signals that ask training to stop: it saves its last finished update first.

Clusters and process groups send every signal to every process, often more than once, so a repeated
signal changes nothing. Only a second Ctrl-C at a terminal, some seconds after the first signal,
ends training without saving.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# seconds after the first signal from which on a Ctrl-C at a terminal is a person's second one
MEANT = 2.0
Handler = Callable[[int, FrameType | None], None]


def replace_handlers(handler: Handler) -> dict[signal.Signals, Any]:
    """Handle SIGNALS so, but for a SIGHUP that nohup ignores; the handlers before, by signal."""
    handled = [s for s in SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    return {s: signal.signal(s, handler) for s in handled}


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """While this context lasts, SIGNALS go to this handler."""
    previous_handlers = replace_handlers(handler)
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)


class Interrupts:
    """While this context lasts, signals are noted and training acts on them at its next safe
    point.
    """

    def __enter__(self) -> Self:
        self.number, self.at = 0, 0.0
        self.replaced = replace_handlers(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_caught():  # the process ends now: repeated signals must not change how
            return
        for number, handler in self.replaced.items():
            signal.signal(number, handler)

    def is_caught(self) -> bool:
        return self.number != 0

    def _note(self, number: int, _: FrameType | None) -> None:
        if not self.number:
            self.number, self.at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self.at >= MEANT and is_at_terminal():
            raise KeyboardInterrupt

    def error(self, scratch: Path, update: int) -> DopsdError:
        """What ends the command, with the exit status that shells give to this signal."""
        number = self.number or signal.SIGTERM  # another process of the run caught it
        outcome = (
            f"saved at update {update} in {scratch}"
            if update
            else "no update was finished, so nothing is saved"
        )
        return DopsdError(
            f"train: interrupted by {signal.Signals(number).name}; {outcome}; the same command"
            " continues",
            128 + number,
        )


def is_at_terminal() -> bool:
    """Whether a Ctrl-C reaches this process from a terminal: in the foreground of the one that it
    reads from.
    """
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
