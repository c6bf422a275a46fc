"""`python flows/guard.py COMMAND...`: a command in a process group of its own, which ends with
whoever started it.

The starter holds this process' standard input open and writes nothing. When it closes, because the
flow was cancelled or killed, the group gets SIGINT: DVC waits for its stage, training saves a
checkpoint. What is still there after GRACE seconds is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LOCK = Path(
    "work/guard.lock"
)  # shared by the guards of a workspace: the next run begins when none is left
GRACE = 1800.0  # seconds: a forward of a large model, and its checkpoint
LOOK_EVERY = 0.2  # seconds
ADOPT_ORPHANS = (
    36  # PR_SET_CHILD_SUBREAPER of Linux' prctl: children of children come to this process
)


def main(words: list[str]) -> int:
    """The command's exit status, or 130 after it was stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _close_input)
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        env = os.environ | {
            "DOPSD_GUARD": str(os.getpid())
        }  # should this process be killed, the command stops by itself
        group = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, env=env)
        while group.poll() is None:
            if is_closed():
                stop(group.pid)
                return 128 + signal.SIGINT
        return group.returncode


def _close_input(*_: object) -> None:
    with suppress(OSError):
        os.close(0)


def is_closed() -> bool:
    """Whether standard input has come to its end; waits a moment."""
    try:
        return bool(select.select([0], [], [], LOOK_EVERY)[0]) and not os.read(0, 1)
    except OSError:  # a signal closed it
        return True


def stop(group: int) -> None:
    """Ask the group to end, wait for all of its processes, and kill those that do not."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    while _has_children() and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    import psutil

    for process in psutil.Process().children(
        recursive=True
    ):  # in whatever group: orphans come to this process
        with suppress(psutil.Error):
            process.kill()


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
