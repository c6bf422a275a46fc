"""`python -m dopsd.pipeline.dvc.patient WORDS`: run DVC, which waits for its stage at any signal.

DVC itself does so at Ctrl-C only. Slurm signals every process of a job: SIGTERM would kill DVC
while its stage still saves. Signals get handlers and not SIG_IGN, which a stage would inherit. When
the process that started this one dies, this one dies too.
"""

import ctypes
import os
import runpy
import shutil
import signal
import sys

from dopsd.core.environment import DVC_PID

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl
PARENT = "DOPSD_WRITER"  # environment variable: id of the process that started this one


def main() -> None:
    """Install the handlers, then become DVC with this process' arguments."""
    # a shell starts background commands with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if str(os.getppid()) != os.environ.pop(PARENT):
            sys.exit(128 + signal.SIGKILL)
    os.environ[DVC_PID] = str(os.getpid())
    # bash replaces itself by the stage; dash would stay, and survive a killed DVC
    if bash := shutil.which("bash"):
        os.environ["SHELL"] = bash
    runpy.run_module("dvc", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
