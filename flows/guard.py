"""`python flows/guard.py COMMAND...`: run a command in a process group that ends with its starter.

The starter holds this process' standard input open and writes nothing. The input closes when the
flow is cancelled or killed. The group then gets SIGINT: DVC waits for its stage, and training saves
a checkpoint. Processes that remain after GRACE seconds are killed.
"""

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

LOCK = Path("work/guard.lock")  # all guards of a workspace share it; the next run waits for them
GRACE = 1800.0  # seconds: time for a forward pass of a large model and its checkpoint
LOOK_EVERY = 0.2  # seconds
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux' prctl: orphans become this process' children


def main(words: list[str]) -> int:
    """Run the command and return its exit code, or 130 if it was stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _close_input)
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # if this process is killed, the command sees it and stops by itself
        env = os.environ | {"DOPSD_GUARD": str(os.getpid())}
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
    """Tell whether standard input is closed, after waiting for a moment."""
    try:
        return bool(select.select([0], [], [], LOOK_EVERY)[0]) and not os.read(0, 1)
    except OSError:  # a signal closed it
        return True


def stop(group: int) -> None:
    """Ask a process group to end, wait up to GRACE seconds, and kill what remains."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    while _has_children() and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    import psutil

    for process in psutil.Process().children(recursive=True):  # also orphans, in any group
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
