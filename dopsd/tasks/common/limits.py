"""`python limits.py MEGABYTES PROGRAM WORD...`: run a program within limits, in place of itself.

Each of its processes gets the limits: memory, size of files, no core dump. Imports nothing of
dopsd, so that it starts at once.
"""

import ctypes
import os
import resource
import signal
import sys

END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux' prctl
LARGEST_FILE = 64 * 2**20  # bytes
NOT_STARTED = 127  # exit status of shells for a program that cannot start


def main(words: list[str]) -> None:
    """Set the limits and become the program."""
    memory = int(words[0]) * 2**20
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        highest = resource.getrlimit(kind)[1]
        soft = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
        resource.setrlimit(kind, (soft, soft))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
    try:
        os.execvp(words[1], words[1:])
    except OSError as error:
        sys.stderr.write(f"{words[1]}: {error.strerror}\n")
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main(sys.argv[1:])
