"""Run commands for tasks: output goes to the Prefect log; commands save and end with the flow."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.states import Failed

from dopsd.core.errors import DopsdError
from dopsd.core.files import WORK
from dopsd.core.processes import ENDS_WITH_INPUT, shell_status
from dopsd.pipeline.run.view import exit_code, new_log, reason
from flows import server

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
LOCK = WORK / "guard.lock"  # all commands of a workspace share it; the next run waits for them
DVC = (sys.executable, "-m", "dopsd.pipeline.dvc.patient")
DOPSD = (sys.executable, "-m", "dopsd")
ENGINES = ("prefect.flow_runs", "prefect.task_runs")  # loggers of the engine, for the whole process
USAGE = 2  # exit code of an error that the user must fix
LOOK_EVERY = 0.5  # seconds
WARN_EVERY = 60.0  # seconds
ASK_EVERY = 15.0  # seconds between two questions whether this flow run is still wanted
PATIENCE = 20.0  # seconds that a stopped command has to end; the worker kills a flow after 30
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
    """Wait until commands of an earlier, cancelled flow have saved and ended."""
    _is_stopping.clear()
    LOCK.parent.mkdir(exist_ok=True)
    warned_at = 0.0
    with LOCK.open("a", encoding="utf-8") as lock:
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() - warned_at > WARN_EVERY:
                    warned_at = time.monotonic()
                    log.warning(
                        "commands of an earlier run still save in this workspace; this run starts"
                        " after them"
                    )
                time.sleep(0.2)


class CommandFailed(Exception):
    """Error of a command that ended with an exit code other than 0; shows its last message.

    Args:
        status: Exit code of the command; that of DVC's stage counts if the output names it.
    """

    def __init__(self, name: str, status: int, lines: list[str]) -> None:
        self.status = exit_code(lines) or status
        super().__init__(f"{name}: {reason(lines)} (exit code {self.status})")

    @property
    def is_mistake(self) -> bool:
        """Whether only a person can fix the error, so that a retry would fail in the same way."""
        return self.status == USAGE


class TakenAway(Exception):
    """A command was stopped because the flow run was cancelled or given to another machine."""


class OutputListener:
    """Follows a running command; the default does nothing."""

    def on_tick(self) -> None:
        """Handle the passing of about half a second."""

    def on_line(self, line: str) -> None:
        """Handle a line of output."""


def run(
    name: str,
    words: tuple[str, ...],
    log: Log,
    env: Mapping[str, str] | None = None,
    listener: OutputListener | None = None,
) -> list[str]:
    """Run a command until it ends or the flow is stopped, and log its output.

    The command writes to a file in work/logs/, which this process follows. The file outlives this
    process, and a pipe would not.

    Raises:
        CommandFailed: if the exit code is not 0.
        TakenAway: if the server says that this flow run was cancelled or is lost.
    """
    listener = listener or OutputListener()
    path = new_log(name)
    LOCK.parent.mkdir(exist_ok=True)
    with (
        path.open("w", encoding="utf-8") as output,
        LOCK.open("a+", encoding="utf-8") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_SH)
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[lock.fileno()],  # the command holds it until it has ended
            env=os.environ | QUIET | {ENDS_WITH_INPUT: "1"} | dict(env or {}),
        )
    _running.add(process)
    lines: list[str] = []
    is_taken_away, asked_at = False, time.monotonic()
    with path.open(errors="replace", encoding="utf-8") as reader:
        try:
            while process.poll() is None and not _is_stopping.is_set() and not is_taken_away:
                _log_new_lines(reader, lines, log, listener)
                listener.on_tick()
                _wait(process, LOOK_EVERY)
                if time.monotonic() - asked_at > ASK_EVERY:
                    is_taken_away, asked_at = server.is_taken_away(), time.monotonic()
        finally:
            was_stopped = process.poll() is None
            _running.discard(process)
            _close(process)
            _wait(process, PATIENCE)
            _log_new_lines(reader, lines, log, listener, is_last=True)
            if process.poll() is None:
                log.warning("%s: still saving; the last lines will be in %s", name, path)
    if is_taken_away:
        raise TakenAway(
            f"{name}: this flow run was cancelled, or is lost and continues elsewhere; progress is"
            " saved here"
        )
    if not _is_stopping.is_set():
        server.wait(log)
    if was_stopped or process.returncode:
        is_stopped = was_stopped or _is_stopping.is_set()
        status = 128 + signal.SIGINT if is_stopped else shell_status(process.returncode)
        raise CommandFailed(name, status, lines)
    return lines


def _log_new_lines(
    reader: TextIO, lines: list[str], log: Log, listener: OutputListener, is_last: bool = False
) -> None:
    """Log the complete lines since the last call; a line without an end only if `is_last`."""
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
    """Close a command's standard input, which tells it to save and end."""
    if process.stdin:
        process.stdin.close()


def stop_all() -> None:
    """Ask all running commands to save and end, and wait up to PATIENCE seconds for them."""
    _is_stopping.set()
    processes = list(_running)
    for process in processes:
        _close(process)
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        _wait(process, max(0.0, deadline - time.monotonic()))


EXPLAINED = (
    DopsdError,
    CommandFailed,
    TakenAway,
)  # their messages name what is wrong and what to do


def drop_traceback(record: logging.LogRecord) -> bool:
    """Filter log records: drop the traceback of an explained error.

    A record of FailedRun is dropped as a whole, since it only repeats the message of a state.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, EXPLAINED):
        record.exc_info = None
    return not isinstance(error, FailedRun)


for name in ENGINES:
    logging.getLogger(name).addFilter(drop_traceback)


def failed(error: BaseException) -> State[None]:
    """Return the state Failed, in one line, for an explained error of this flow or of a subflow.

    Raises:
        BaseException: `error` itself, if its message explains nothing; Prefect then logs the
            traceback.
    """
    if isinstance(error, DopsdError):
        return Failed(message=error.coded)
    if isinstance(error, (CommandFailed, TakenAway, FailedRun)):
        return Failed(message=str(error))
    raise error
