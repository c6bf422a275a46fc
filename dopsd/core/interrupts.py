"""Handle signals that ask training to stop: save the last finished update first.

Clusters and process groups send every signal to every process, often more than once, so a repeated
signal changes nothing. Only a second Ctrl-C at a terminal, at least MEANT seconds after the first
signal, ends training without saving.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

from dopsd.core.errors import Code, DopsdError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# seconds after the first signal before a Ctrl-C at a terminal counts as a deliberate second one
MEANT = 2.0
Handler = Callable[[int, FrameType | None], None]


def replace_handlers(handler: Handler) -> dict[signal.Signals, Any]:
    """Install the handler for SIGNALS, and return the previous handlers by signal.

    A SIGHUP that nohup ignores stays ignored.
    """
    handled = [s for s in SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    return {s: signal.signal(s, handler) for s in handled}


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Send SIGNALS to this handler while the context lasts."""
    previous_handlers = replace_handlers(handler)
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)


class Interrupts:
    """Record signals while the context lasts; training acts on them at its next safe point."""

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
        """Return whether a signal has arrived."""
        return self.number != 0

    def _note(self, number: int, _: FrameType | None) -> None:
        if not self.number:
            self.number, self.at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self.at >= MEANT and is_at_terminal():
            raise KeyboardInterrupt

    def error(self, scratch: Path, update: int) -> DopsdError:
        """Return the error that ends the command, with exit status 128 + the signal's number.

        Args:
            update: number of the last saved update; 0 if none was finished.
        """
        number = self.number or signal.SIGTERM  # another process of the run caught the signal
        outcome = (
            f"saved at update {update} in {scratch}"
            if update
            else "no update was finished, so nothing is saved"
        )
        return Code.INTERRUPTED.error(
            f"train: interrupted by {signal.Signals(number).name}; {outcome}; the same command"
            " continues",
            128 + number,
        )


def is_at_terminal() -> bool:
    """Return whether this process can receive a Ctrl-C from the terminal that it reads from."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
