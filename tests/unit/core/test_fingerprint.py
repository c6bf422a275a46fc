"""Fingerprints read code without running it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from dopsd.core.fingerprint import closure
print(*closure("dopsd.evaluation.evaluator"))
print("torch" in sys.modules)
"""


def test_modules_that_are_read_are_not_imported():
    """To look for dopsd.models.denoiser.Denoiser must not import torch and transformers."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    modules, has_torch = done.stdout.splitlines()
    assert "dopsd.models.denoiser" in modules.split() and has_torch == "False"
