"""Commands run by tasks: their lines go to the Prefect log, and they end when the flow does."""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from flows import server
from flows.guard import LOCK

Log = logging.Logger | logging.LoggerAdapter
GUARD = Path(__file__).with_name("guard.py")
DVC = (sys.executable, "-m", "dvc")
DOPSD = (sys.executable, "-m", "dopsd")
USAGE = 2  # exit status of a mistake that its user must mend
SAY_EVERY = 60.0  # seconds
PATIENCE = 20.0  # seconds for a stopped command to end before the flow does: the worker kills a flow after 30
QUIET = {"DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUNBUFFERED": "1"}
CHATTER = (
    "To track the changes",
    "To enable auto staging",
    "\tgit add",
    "\tdvc config",
    "Use `dvc push`",
    "Updating lock file",
)
_running: set[subprocess.Popen[str]] = set()
_is_stopping = threading.Event()


def begin(log: Log) -> None:
    """A flow begins: wait until what an earlier one started, and was cancelled in, has saved."""
    _is_stopping.clear()
    LOCK.parent.mkdir(exist_ok=True)
    said = 0.0
    with LOCK.open("a") as lock:
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() - said > SAY_EVERY:
                    said = time.monotonic()
                    log.warning("commands of an earlier run are still saving in this workspace; this one begins after them")
                time.sleep(0.2)


class CommandFailed(Exception):
    """A command that ended with another status than 0; its message is what the command said last."""

    def __init__(self, name: str, status: int, said: list[str]) -> None:
        self.status = _status_of_stage(said) or status
        super().__init__(f"{name}: {_reason(said)} (exit status {self.status})")

    @property
    def is_mistake(self) -> bool:
        """Whether only a person can mend it, so that another try would fail in the same way."""
        return self.status == USAGE


def _status_of_stage(said: list[str]) -> int:
    """DVC ends with 255 whatever its stage's status was, and says that."""
    found = [match[1] for line in said if (match := re.search(r"exited with (-?\d+)", line))]
    return int(found[-1]) if found else 0


def _reason(said: list[str]) -> str:
    """The last of dopsd's own lines, else the last line."""
    told = [line.removeprefix("dopsd: ") for line in said if line.startswith("dopsd: ")]
    return (told or said or ["it said nothing"])[-1]


class Watch:
    """Who looks on while a command runs: about once a second, and at every line."""

    def look(self) -> None: ...

    def hear(self, line: str) -> None: ...


def run(
    name: str, words: tuple[str, ...], log: Log, env: Mapping[str, str] | None = None, watch: Watch | None = None
) -> list[str]:
    """The lines that the command wrote."""
    watch = watch or Watch()
    process = subprocess.Popen(
        [sys.executable, str(GUARD), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ | QUIET | dict(env or {}),
    )
    _running.add(process)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    said: list[str] = []
    try:
        while process.poll() is None and not _is_stopping.is_set():
            for line in _waiting(lines, 1.0):
                _tell(line, said, log, watch)
            watch.look()
        reader.join(timeout=1.0)
        for line in _waiting(lines, 0.0):
            _tell(line, said, log, watch)
    finally:
        stop(process)
    if not _is_stopping.is_set():
        server.wait(log)
    if process.returncode != 0:
        raise CommandFailed(name, process.returncode or 128 + signal.SIGINT, said)
    return said


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Its lines, then None when it has closed its output, as it does when it ends."""
    for line in process.stdout:
        lines.put(line.rstrip())
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    lines.put(None)


def _waiting(lines: queue.SimpleQueue[str | None], seconds: float) -> Iterator[str]:
    """The lines that are there; where there are none, the first that comes in so many seconds."""
    try:
        line = lines.get(timeout=seconds) if seconds else lines.get_nowait()
        while line is not None:
            yield line
            line = lines.get_nowait()
    except queue.Empty:
        return


def _tell(line: str, said: list[str], log: Log, watch: Watch) -> None:
    if line and not line.startswith(CHATTER):
        said.append(line)
        log.info(line)
        watch.hear(line)


def stop(process: subprocess.Popen[str]) -> None:
    """Let the command's group save and end; the guard goes on waiting for it where this process cannot."""
    _running.discard(process)
    process.stdin.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return


def stop_all() -> None:
    """End what tasks in other threads are running, all at once."""
    _is_stopping.set()
    stopped = list(_running)
    for process in stopped:
        process.stdin.close()
    until = time.monotonic() + PATIENCE
    for process in stopped:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
