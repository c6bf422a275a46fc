"""Processes with a pretended GPU, for tests: it must be there before torch is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu import shim

TESTS = Path(__file__).parents[1]


def start(*words: str, **env: str) -> subprocess.Popen[str]:
    """Start `python -m gpu WORDS` in the working directory."""
    if reason := shim.reason_against():
        pytest.skip(reason)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    environment["PYTHONPATH"] = f"{TESTS.parent}:{TESTS}"
    command = [sys.executable, "-m", "gpu", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=environment, text=True, **streams)


def output(process: subprocess.Popen[str], status: int = 0) -> str:
    """Return what a process printed, once it has ended with this status."""
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == status, printed
    return printed


def checked() -> dict[str, Any]:
    """Return what `python -m gpu check` prints."""
    printed = output(start("check"))
    return json.loads(printed[printed.index("{") :])
