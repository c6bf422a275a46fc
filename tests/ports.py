"""Free ports of this machine, and servers that take a while to answer there."""

import os
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

from dopsd.distributed.nodes import free_port

__all__ = ["free_port", "until_healthy"]

BOUND = 600.0  # seconds to the first answer; an upper bound on a loaded machine


def until_healthy(url: str, process: subprocess.Popen, log: Path = Path(os.devnull)) -> None:
    """Wait until a server answers; fail with its log if it ends first, or never answers."""
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])
