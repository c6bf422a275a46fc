"""`python -m dopsd.pipeline.patient_dvc WORDS`: DVC that waits for its stage whatever signal comes,
as it does at Ctrl-C.

Slurm signals every process of a job. DVC would die of SIGTERM and leave its stage, which is saving,
to nobody. Handlers, and not SIG_IGN, because a stage would inherit that. Where the process that
started it dies, this one dies too.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shutil
import signal
import sys

from dopsd.core.environment import DVC_PID

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl
PARENT = "DOPSD_WRITER"  # in the environment: the process that started this one


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background command of a shell has it ignored
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if str(os.getppid()) != os.environ.pop(PARENT):
            sys.exit(128 + signal.SIGKILL)
    os.environ[DVC_PID] = str(os.getpid())
    if bash := shutil.which(
        "bash"
    ):  # which becomes the stage; dash would stay, and live on when DVC is killed
        os.environ["SHELL"] = bash
    runpy.run_module("dvc", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
