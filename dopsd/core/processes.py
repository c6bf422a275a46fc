"""End a process with the one that started it, and give what it runs time to save.

By the death of the starter where Linux tells of it; by the end of standard input where the starter
is a flow, or on another machine.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from dopsd.core.environment import DVC_PID, DVC_STAGE
from dopsd.core.progress import log

END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux' prctl
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux' prctl
ENDS_WITH_INPUT = "DOPSD_ENDS_WITH_INPUT"  # set for commands whose flow holds their input open
LAUNCHER = "DOPSD_LAUNCHER"  # set for processes that end with their starter
SAVING = 1800.0  # seconds after a signal: a forward pass of a large model and its checkpoint


def signal_with_parent(number: signal.Signals) -> None:
    """Let Linux send a signal to this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(END_WITH_PARENT, number)


def end_with_starter() -> None:
    """Let SIGTERM come when the launcher or DVC is killed that started this process.

    The process then saves, and does not keep its GPUs.
    """
    if not {LAUNCHER, DVC_STAGE} & os.environ.keys():
        return
    signal_with_parent(signal.SIGTERM)
    # DVC may have been killed before the line above took effect
    dvc = os.environ.get(DVC_PID)
    if sys.platform == "linux" and DVC_STAGE in os.environ and dvc and not _is_alive(dvc):
        log("DVC was killed before this stage began; the same command continues")
        sys.exit(128 + signal.SIGTERM)


def _is_alive(process: str) -> bool:
    """Tell whether a process runs, and is no zombie that its parent has not read."""
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
        return status.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent dies, so that `wait_for_orphans` waits."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)


def wait_for_orphans() -> None:
    """Wait for all processes that this one started or adopted: they may still save."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def shell_status(status: int) -> int:
    """Return an exit status as a shell names it: 128 + number where a signal ended the process."""
    return status if status >= 0 else 128 - status


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if there still is one."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def end_with_input(number: signal.Signals, saving: float = SAVING) -> None:
    """Send a signal to this process when its input ends; its own input is then /dev/null.

    Args:
        number: the signal, such as SIGINT.
        saving: seconds until the process is killed with all that it started.
    """
    import psutil  # now: a process that is short of memory could not import it later

    adopt_orphans()
    if signal.getsignal(number) is signal.SIG_IGN:  # by a shell, of background commands
        signal.signal(number, signal.default_int_handler)
    this, watched = psutil.Process(), os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    def watch() -> None:
        with suppress(OSError):
            while os.read(watched, 1024):
                pass
        os.kill(this.pid, number)
        time.sleep(saving)
        for process in this.children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        os.kill(this.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
