"""Become `python -m dopsd WORDS` on another node, in the environment that the first node sends.

The first line of the input has its variables as JSON; null removes one. A command line would show
them to every user of both machines. This file runs by its path and imports nothing of dopsd, which
may lie where the sent PYTHONPATH says.
"""

import json
import os
import signal
import sys


def main() -> None:
    """Read the environment, then become dopsd; the rest of the input stays unread."""
    with open(0, "rb", buffering=0, closefd=False) as unread:
        line = unread.readline()
    if not line.endswith(b"\n"):  # the first node has ended
        sys.exit(128 + signal.SIGTERM)
    for name, value in json.loads(line).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.execv(sys.executable, [sys.executable, "-m", "dopsd", *sys.argv[1:]])


if __name__ == "__main__":
    main()
