"""A command on a terminal of its own, whose keys a test presses."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

BOUND = 900.0  # seconds; an upper bound on a loaded machine
CTRL_C = b"\x03"
# the command gets the terminal as the one that sends it signals
SETUP = """import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])"""


class Terminal:
    """A command in a session of its own, with a terminal of 110 columns and 40 lines."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.keys, theirs = pty.openpty()
        here = {"cwd": cwd, "env": env | {"TERM": "xterm", "COLUMNS": "110", "LINES": "40"}}
        here |= dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        command = [sys.executable, "-c", SETUP, *words]
        self.process = subprocess.Popen(command, start_new_session=True, **here)
        os.close(theirs)
        self.shown = ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.keys, 65536)
            except OSError:  # the command has ended
                return
            self.shown += data.decode(errors="replace")

    @property
    def text(self) -> str:
        """What was shown, without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.shown).replace("\r", "")

    def until(self, pattern: str) -> None:
        """Wait until the screen has shown this."""
        deadline = time.monotonic() + BOUND
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, self.text[-3000:]
            assert time.monotonic() < deadline, self.text[-3000:]
            time.sleep(0.1)

    def press(self, keys: bytes) -> None:
        """Type on the terminal."""
        os.write(self.keys, keys)

    def end(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        status = self.process.wait(BOUND)
        self.reader.join(BOUND)
        os.close(self.keys)
        return status
