"""`python run_flow.py COMMAND...`: first process of a run's pod, which waits for all others.

A container is killed when its first process ends. A cancelled or evicted flow ends within half a
minute, while training still saves.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

SAVING = 1900  # seconds after the end of the flow; longer than that of dopsd/core/processes
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux' prctl, if this process does not have id 1


def main(words: list[str], saving: int = SAVING) -> int:
    """Run the command, and return its exit code once its descendants ended or `saving` s passed."""
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)
    early: list[int] = []  # signals that come before the flow is there
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: early.append(signum))
    flow = subprocess.Popen(words)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: flow.send_signal(signum))
    for number in early:
        flow.send_signal(number)
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(code))
    code = 1
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if pid == flow.pid:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else 128 - exit_code
            signal.alarm(saving)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
