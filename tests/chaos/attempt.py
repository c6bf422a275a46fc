"""One attempt of a trial: a command, disturbed when the fault is due, and waited for."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos import processes
from chaos.folders import dvc, environment, state_of
from chaos.plan import TRAINING, Plan

LOOK_EVERY = 0.003  # seconds
LONGEST = 600.0  # seconds for an attempt: ten times what it takes
GONE = 60.0  # seconds for everything that an attempt has started to end after it
SAVED = 30.0  # seconds between a signal and the checkpoint that it asks for


@dataclass
class Ended:
    """How an attempt ended: its status (None: it never did), what was said, and who outlived it."""

    status: int | None
    said: str
    left: dict[int, str]
    orphaned: int = 0  # updates that training made after the command that had started it

    @property
    def stage_status(self) -> int | None:
        """The status of the stage that failed, which DVC names; else the command's own."""
        told = re.findall(r"exited with (-?\d+)", self.said)
        return int(told[-1]) if told else self.status

    @property
    def line(self) -> str:
        """The last line of the product's own, else the last line."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        own = [line for line in lines if line.startswith("dopsd: ")]
        return (own or lines or [""])[-1][:400]


class Run:
    """`dvc repro` in a session of its own; its output in a file, or in pipes that can be closed."""

    def __init__(
        self, folder: Path, command: str, number: int, env: dict[str, str], piped: str = ""
    ) -> None:
        self.folder, self.state = folder, state_of(folder)
        self.log = self.state / f"attempt-{number}.log"
        words = dvc("repro", "train" if command == "train" else "report")
        with self.log.open("ab") as out:
            streams = {"stdout": out, "stderr": out}
            for name in ("stdout", "stderr"):
                if piped in (name, "both"):
                    streams[name] = subprocess.PIPE
            here = {"cwd": folder, "env": environment(folder, self.state) | env}
            streams["stdin"] = subprocess.DEVNULL
            self.process = subprocess.Popen(words, start_new_session=True, **here, **streams)
        for stream in self._pipes():
            threading.Thread(target=self._copy, args=(stream,), daemon=True).start()

    def _pipes(self) -> list:
        return [stream for stream in (self.process.stdout, self.process.stderr) if stream]

    def _copy(self, stream) -> None:
        with self.log.open("ab", buffering=0) as out:
            while raw := self._next(stream):
                out.write(raw)

    @staticmethod
    def _next(stream) -> bytes:
        try:
            return os.read(stream.fileno(), 4096)
        except (OSError, ValueError):
            return b""

    def close_pipes(self) -> None:
        """The reader goes away: what is written from now on fails."""
        for stream in self._pipes():
            # the reading end is replaced: closing it would wait for a blocked read
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, stream.fileno())
            os.close(null)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def group(self) -> list[int]:
        """Every process of the command's session, as a terminal or a cluster signals them."""
        own, found = self.process.pid, processes.found(self.state)
        return [pid for pid in found if processes.session(pid) == own]

    def wait(self, seconds: float = LONGEST) -> Ended:
        try:
            status: int | None = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        if status is None:
            processes.end_all(self.state)
        before = updates_done(self.folder)
        left = processes.wait_until_gone(self.state, GONE)
        processes.end_all(self.state)
        orphaned = updates_done(self.folder) - before
        return Ended(status, self.log.read_text(errors="replace"), left, orphaned)


def wait_for_fault(run: Run, plan: Plan) -> tuple[str, int] | None:
    """Until the plan's phase, update and delay; None where the run is over before."""
    until = time.monotonic() + LONGEST
    while not run.is_over() and time.monotonic() < until:
        phase, update = processes.phase(run.state)
        if phase == plan.phase and (update >= plan.update or phase not in TRAINING):
            time.sleep(plan.delay)
            return None if run.is_over() else processes.phase(run.state)
        time.sleep(LOOK_EVERY)
    return None


def scratch(folder: Path) -> Path | None:
    """Where training keeps its checkpoints."""
    places = sorted((folder / "work").glob("train-*"))
    return places[0] if places else None


def updates_done(folder: Path) -> int:
    place = scratch(folder)
    log = place / "log.jsonl" if place else None
    return log.read_bytes().count(b"\n") if log and log.is_file() else 0


def saved_update(folder: Path) -> int:
    """The update of the newest checkpoint; 0 where there is none."""
    place = scratch(folder)
    steps = place.glob("step-??????") if place else ()
    return max((int(path.name[5:]) for path in steps), default=0)


def ask_to_stop(run: Run, deliver: Callable[[], None]) -> str:
    """Deliver a stop to a run in training; what is wrong with how it saved, or nothing."""
    done, began = updates_done(run.folder), time.monotonic()
    deliver()
    while done and saved_update(run.folder) < done:
        is_over = not processes.of_part(run.state, "stage")
        is_late = is_over or time.monotonic() > began + SAVED
        if is_late and (saved := saved_update(run.folder)) < done:
            when = "after the end of training" if is_over else f"{SAVED:.0f} s later"
            return f"{done} updates done at the signal; newest checkpoint {when}: update {saved}"
        time.sleep(0.05)
    return ""


def targets(run: Run, name: str) -> list[int]:
    """Ids of the processes that a signal is for."""
    return run.group() if name == "group" else processes.of_part(run.state, name)


SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
