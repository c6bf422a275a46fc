"""Commands run by tasks: their lines go to the Prefect log, and they end when the flow does."""

from __future__ import annotations

import logging
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from flows import server

GUARD = Path(__file__).with_name("guard.py")
DVC = (sys.executable, "-m", "dvc")
DOPSD = (sys.executable, "-m", "dopsd")
USAGE = 2  # exit status of a mistake that its user must mend
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


def run(
    name: str,
    words: tuple[str, ...],
    log: logging.Logger | logging.LoggerAdapter,
    env: Mapping[str, str] | None = None,
    watch: Callable[[], None] = lambda: None,
) -> list[str]:
    """The lines that the command wrote; `watch` is called about once a second while it runs."""
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
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=lambda: [lines.put(line.rstrip()) for line in process.stdout], daemon=True)
    reader.start()
    said: list[str] = []
    try:
        while process.poll() is None:
            _tell(lines, said, log, wait=1.0)
            watch()
        reader.join(timeout=1.0)
        _tell(lines, said, log, wait=0.0)
    finally:
        stop(process)
    server.wait(log)
    if process.returncode:
        raise CommandFailed(name, process.returncode, said)
    return said


def _tell(lines: queue.SimpleQueue[str], said: list[str], log: logging.Logger | logging.LoggerAdapter, wait: float) -> None:
    try:
        while True:
            line = lines.get(timeout=wait) if wait else lines.get_nowait()
            if line and not line.startswith(CHATTER):
                said.append(line)
                log.info(line)
            wait = 0.0
    except queue.Empty:
        return


def stop(process: subprocess.Popen[str]) -> None:
    """Let the command's group save and end; the guard goes on waiting for it where this process cannot."""
    _running.discard(process)
    process.stdin.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return


def stop_all() -> None:
    """End what tasks in other threads are running."""
    for process in list(_running):
        process.stdin.close()
    for process in list(_running):
        stop(process)
