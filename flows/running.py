"""Commands run by tasks: their lines go to the Prefect log, and they are asked to save and end when
the flow does.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from flows import server
from flows.guard import LOCK

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
GUARD = Path(__file__).with_name("guard.py")
DVC = (sys.executable, "-m", "dvc")
DOPSD = (sys.executable, "-m", "dopsd")
USAGE = 2  # exit status of a mistake that its user must mend
LOGS = Path("work/logs")
KEPT_LOGS = 100  # files
LOOK_EVERY = 0.5  # seconds
SAY_EVERY = 60.0
# seconds for a stopped command to end before the flow does: the worker kills a flow after 30
PATIENCE = 20.0
QUIET = {
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PYTHONUNBUFFERED": "1",
}
CHATTER = (
    "To track the changes",
    "To enable auto staging",
    "\tgit add",
    "\tdvc config",
    "Use `dvc push`",
    "Updating lock file",
)
_running: set[subprocess.Popen[bytes]] = set()
_is_stopping = threading.Event()


def begin(log: Log) -> None:
    """A flow begins: wait until what an earlier one started, and was cancelled in, has saved."""
    _is_stopping.clear()
    LOCK.parent.mkdir(exist_ok=True)
    warned_at = 0.0
    with LOCK.open("a") as lock:
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() - warned_at > SAY_EVERY:
                    warned_at = time.monotonic()
                    log.warning(
                        "commands of an earlier run are still saving in this workspace; this one"
                        " begins after them"
                    )
                time.sleep(0.2)


class CommandFailed(Exception):
    """A command that ended with another status than 0; its message is what the command said
    last.
    """

    def __init__(self, name: str, status: int, lines: list[str]) -> None:
        self.status = _status_of_stage(lines) or status
        super().__init__(f"{name}: {_reason(lines)} (exit status {self.status})")

    @property
    def is_mistake(self) -> bool:
        """Whether only a person can mend it, so that another try would fail in the same way."""
        return self.status == USAGE


def _status_of_stage(lines: list[str]) -> int:
    """DVC ends with 255 whatever its stage's status was, and says that."""
    statuses = [match[1] for line in lines if (match := re.search(r"exited with (-?\d+)", line))]
    return int(statuses[-1]) if statuses else 0


def _reason(lines: list[str]) -> str:
    """The last of dopsd's own lines, else the last line."""
    dopsd_lines = [line.removeprefix("dopsd: ") for line in lines if line.startswith("dopsd: ")]
    return (dopsd_lines or lines or ["it said nothing"])[-1]


class OutputListener:
    """Who looks on while a command runs: about twice a second, and at every line."""

    def on_tick(self) -> None: ...

    def on_line(self, line: str) -> None: ...


def run(
    name: str,
    words: tuple[str, ...],
    log: Log,
    env: Mapping[str, str] | None = None,
    listener: OutputListener | None = None,
) -> list[str]:
    """Run a command until it ends or the flow is stopped; its lines go to the log.

    The command writes to a file in work/logs/, which this process follows: it outlives this
    process, and a pipe would not.

    Returns:
        The lines that the command wrote.

    Raises:
        CommandFailed: if its exit status is not 0.
    """
    listener = listener or OutputListener()
    path = _log_file(name)
    with path.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(GUARD), *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | QUIET | dict(env or {}),
        )
    _running.add(process)
    lines: list[str] = []
    with path.open(errors="replace") as reader:
        try:
            while process.poll() is None and not _is_stopping.is_set():
                _tell(reader, lines, log, listener)
                listener.on_tick()
                _wait(process, LOOK_EVERY)
        finally:
            _running.discard(process)
            _close(process)
            _wait(process, PATIENCE)
            _tell(reader, lines, log, listener, is_last=True)
            if process.poll() is None:
                log.warning("%s: still saving; its last lines will be in %s", name, path)
    if not _is_stopping.is_set():
        server.wait(log)
    if process.returncode != 0:
        raise CommandFailed(name, process.returncode or 128 + signal.SIGINT, lines)
    return lines


def _log_file(name: str) -> Path:
    """A new file for one command's output; only the newest are kept."""
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in sorted(LOGS.glob("*.log"))[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return LOGS / f"{started}-{name}.log"


def _tell(
    reader: TextIO, lines: list[str], log: Log, listener: OutputListener, is_last: bool = False
) -> None:
    """Log the whole lines that were written since the last call; a line without its end only if
    none can come.
    """
    while True:
        position, line = reader.tell(), reader.readline()
        if not line or not (line.endswith("\n") or is_last):
            reader.seek(position)
            return
        line = line.rstrip()
        if line and not line.startswith(CHATTER):
            lines.append(line)
            log.info(line)
            listener.on_line(line)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _close(process: subprocess.Popen[bytes]) -> None:
    """End a command's standard input: its guard takes that for a stop."""
    if process.stdin:
        process.stdin.close()


def stop_all() -> None:
    """Ask what tasks in other threads are running to save and end, all at once, and wait for it a
    while.
    """
    _is_stopping.set()
    processes = list(_running)
    for process in processes:
        _close(process)
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        _wait(process, max(0.0, deadline - time.monotonic()))
