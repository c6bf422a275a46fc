"""Copy checkpoints to another place while training goes on, and continue from them elsewhere."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import write_json
from dopsd.core.progress import log
from dopsd.training import checkpoint
from dopsd.training.checkpoint import update_of
from dopsd.training.remote_place import KEY, Place, update_of_copy
from dopsd.training.resuming import RECORD, record_of, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDING = 900.0  # seconds that a run waits at its end for the last copies
FAILURES = 2  # in a row, after which a place is left alone until the next checkpoint


class RemoteCopies:
    """Copies checkpoints in the background; the newest first, since it is the one to resume from.

    A failure is logged, and tried again with the next checkpoint and once at the end. Training
    never fails with it. Leaving the context waits for the copies that are still to be made.
    """

    def __init__(self, remote: str | None, scratch: Path) -> None:
        self.place = Place(remote, scratch.name) if remote else None
        self.waiting: list[Path] = []
        self.change, self.is_new, self.is_ending = threading.Condition(), False, False
        self.warned = ""
        self.thread = threading.Thread(target=self._work, args=(self.place,), daemon=True)

    def __enter__(self) -> Self:
        if self.place:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.place:
            return
        with self.change:
            self.is_ending = True
            self.change.notify()
        self.thread.join(1.0)
        if self.thread.is_alive():
            log(f"train: copying the last checkpoints to {self.place.remote}")
            self.thread.join(ENDING)
        if self.thread.is_alive():
            log(f"train: {self.place.remote} takes too long; the rest is on this disk only")

    def add(self, step: Path) -> None:
        """Copy a saved checkpoint soon; return at once."""
        if self.place:
            with self.change:
                self.waiting.append(step)
                self.is_new = True
                self.change.notify()

    def _work(self, place: Place) -> None:
        while True:
            with self.change:
                while not self.is_new and not self.is_ending:
                    self.change.wait()
                is_last, self.is_new = self.is_ending, False
            self._copy_waiting(place)
            if is_last:
                return

    def _copy_waiting(self, place: Place) -> None:
        """Try each waiting checkpoint once, unless the place seems to be out of order."""
        tried: set[Path] = set()
        failures = 0
        while failures < FAILURES:
            with self.change:
                self.waiting = [step for step in self.waiting if step.is_dir()]
                left = {*self.waiting} - tried
            if not left:
                return
            step = max(left, key=update_of)
            tried.add(step)
            try:
                place.put(step)
            except Exception as error:  # whatever a store does: the checkpoint on disk is safe
                failures += 1
                self._say(step, place, one_line(error))
            else:
                failures = 0
                with self.change:
                    self.waiting.remove(step)

    def _say(self, step: Path, place: Place, reason: str) -> None:
        if reason != self.warned:
            log(
                f"train: {KEY}: {step.name} was not copied to {place.remote} ({reason}); it is safe"
                " on this disk, and is copied once the next checkpoint is saved"
            )
        self.warned = reason


def one_line(error: Exception) -> str:
    """Return an error's type and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextmanager
def _readable(remote: str) -> Iterator[None]:
    try:
        yield
    except DopsdError:
        raise
    except Exception as error:
        raise DopsdError(
            f"train: {KEY}: {remote} cannot be read ({one_line(error)}), so a run that another"
            f" machine began would start again; repair it, or set {KEY}=null",
            TEMPORARY,
            code=Code.TEMPORARY,
        ) from error


def fetch(remote: str | None, scratch: Path) -> None:
    """Fetch the checkpoints of a run that are further than those on this disk.

    Args:
        remote: `checkpoints.remote`; None: there is none.
        scratch: the run's folder in work/.

    Raises:
        DopsdError: if the place cannot be read.
    """
    if not remote:
        return
    with _readable(remote):
        place = Place(remote, scratch.name)
        here = {update_of(step) for step in steps_of(scratch) if not checkpoint.fault(step)}
        copies = [copy for copy in place.copies() if update_of_copy(copy) not in here]
        if not copies or update_of_copy(copies[-1]) <= max(here, default=0):
            return
        record, own = place.record(), record_of(scratch)
        if not record:
            log(f"train: {place.path}: {RECORD} is missing or damaged; its copies are not used")
            return
        if own and own["history"] != record.get("history"):
            log(f"train: {place.path}: of other code than {scratch}; not fetched")
            return
        scratch.mkdir(parents=True, exist_ok=True)
        if not own:
            write_json(scratch / RECORD, record)
        taken = set()
        for copy in copies:
            update = update_of_copy(copy)
            if update not in taken and place.get(copy, scratch / f"step-{update:06d}"):
                taken.add(update)
    if taken:
        log(
            f"train: fetched {len(taken)} checkpoints of this run up to update {max(taken)} from"
            f" {remote}"
        )
