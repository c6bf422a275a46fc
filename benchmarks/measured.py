"""Run a process, and measure its wall time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEAST = 0.7e9  # available bytes below which a process is killed
EVERY = 0.1  # seconds between two looks at a process


class Failed(Exception):
    """A step that did not end well; the text is what the table says of it."""


@dataclass
class Peak:
    """The most bytes that a process held, by kind."""

    total: int = 0
    anonymous: int = 0

    def look(self, pid: int) -> None:
        """Read Linux' counts of a process that may have ended."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return
        sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
        if "VmHWM" in sizes:
            self.total = max(self.total, int(sizes["VmHWM"].split()[0]) * 1024)
            self.anonymous = max(self.anonymous, int(sizes["RssAnon"].split()[0]) * 1024)


def available() -> int:
    """Return the bytes of memory that Linux can still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def measured(
    words: list[str], cwd: Path, until: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Run a process and return its figures; it is killed once `until` holds.

    Raises:
        Failed: if it fails, or takes memory that others need.
    """
    cwd.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    started, peak, is_killed = time.monotonic(), Peak(), False
    with (cwd / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=cwd, env=env, stdout=output, stderr=sys.stderr
        )
        try:
            while process.poll() is None:
                peak.look(process.pid)
                if available() < LEAST:
                    raise Failed(f"needs more memory: killed at {peak.anonymous / 1e9:.2f} GB")
                if until is not None and until():
                    process.kill()
                    is_killed = True
                    break
                time.sleep(EVERY)
        finally:
            process.kill()
            status = process.wait()
        output.seek(0)
        printed = output.read()
    if status != (-signal.SIGKILL if is_killed else 0):
        raise Failed(f"{' '.join(words[:4])} ended with {status}")
    figures = {"seconds": round(time.monotonic() - started, 1)}
    figures |= {"peak_gb": peak.total / 1e9, "anonymous_gb": peak.anonymous / 1e9}
    return figures | (json.loads(printed) if printed.startswith("{") else {})
