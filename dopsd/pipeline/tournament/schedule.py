"""Make the runs of a tournament: which are missing, some side by side, until time is up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import write_json
from dopsd.core.interrupts import handling
from dopsd.core.progress import Progress, log
from dopsd.distributed.launch import GUARD
from dopsd.pipeline.tournament.cells import IMPOSSIBLE, TEST
from dopsd.pipeline.tournament.choice import FAILED, LOGS, best_within, log_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

    from dopsd.pipeline.tournament.cells import Cell

LOOK_EVERY = 0.2  # seconds
WORKER = "dopsd.pipeline.tournament.worker"


@dataclass
class Schedule:
    """Runs side by side, each in a process with one thread.

    Attributes:
        path: the plan's file.
        jobs: processes side by side.
        deadline: time.monotonic() from which on no run starts and the running ones save.
    """

    path: Path
    jobs: int
    deadline: float
    running: dict[subprocess.Popen[bytes], Cell] = field(default_factory=dict)
    stopped: int = 0  # the signal that asked to stop
    part: str = ""  # that is being made

    def make(self, part: str, cells: Sequence[Cell]) -> None:
        """Make the missing runs of a part, or test them.

        Args:
            part: TUNE, RUN, SWITCH, or TEST of the runs of both.
            cells: the runs of the part.

        Raises:
            DopsdError: if time is up or a signal came; finished runs stay, others continue later.
        """
        self.part = part
        missing = [cell for cell in cells if not self._is_done(cell) and not reason_of(cell)]
        LOGS.mkdir(parents=True, exist_ok=True)
        with handling(self._note), Progress(f"tournament {part}", len(cells), "run") as progress:
            progress.resume_at(len(cells) - len(missing))
            try:
                self._make(list(missing), progress)
            finally:
                self._terminate()

    def _make(self, waiting: list[Cell], progress: Progress) -> None:
        while waiting or self.running:
            if self.stopped or time.monotonic() > self.deadline:
                self._stop(len(waiting) + len(self.running))
            while waiting and len(self.running) < self.jobs:
                self._start(waiting.pop(0))
            time.sleep(LOOK_EVERY)
            for process in [p for p in self.running if p.poll() is not None]:
                if process.returncode == TEMPORARY:  # its run is in use, for example
                    waiting.append(self.running.pop(process))
                    time.sleep(1)
                else:
                    self._end(process, progress)

    def _is_done(self, cell: Cell) -> bool:
        return (cell.tested if self.part == TEST else cell.result) is not None

    def _start(self, cell: Cell) -> None:
        names = ("part", "task", "entry", "seed", "rate", "switch")
        fields = json.dumps({name: getattr(cell, name) for name in names})
        step = TEST if self.part == TEST else "make"
        command = [sys.executable, "-m", WORKER, step, str(self.path), fields]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", GUARD: "1"}
        with log_of(cell).open("ab") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, **threads},
                start_new_session=True,  # a Ctrl-C reaches this process alone, which tells them
            )
        self.running[process] = cell

    def _end(self, process: subprocess.Popen[bytes], progress: Progress) -> None:
        cell = self.running.pop(process)
        lines = log_of(cell).read_text(errors="replace", encoding="utf-8").splitlines() or [
            "no output"
        ]
        if process.returncode == 0:
            best = best_within(cell) or 0.0
            note = "" if self.part == TEST else f": {best:.1%} at best on validation"
            progress.step(1, f"{cell}{note}")
            return
        if process.returncode != IMPOSSIBLE:
            raise self._failed(cell, f"exit code {process.returncode}: {lines[-1]}")
        write_json(cell.key.folder / FAILED, {"identity": cell.identity, "reason": lines[-1]})
        log(f"tournament: {cell}: takes no part: {lines[-1]}")
        progress.step(1)

    def _failed(self, cell: Cell, reason: str) -> DopsdError:
        return DopsdError(
            f"tournament: {cell}: {reason}; see {log_of(cell)}; the same command continues",
            1,
            code=Code.STAGE_FAILED,
        )

    def _stop(self, left: int) -> None:
        why = signal.Signals(self.stopped).name if self.stopped else "time is up"
        raise DopsdError(
            f"tournament: {why}: {left} runs of this part are left; the same command continues",
            128 + self.stopped if self.stopped else TEMPORARY,
            code=Code.INTERRUPTED,
        )

    def _terminate(self) -> None:
        """Ask all running processes to save and end, and wait for them."""
        for process in self.running:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait()
        self.running.clear()

    def _note(self, number: int, _: FrameType | None) -> None:
        self.stopped = self.stopped or number
