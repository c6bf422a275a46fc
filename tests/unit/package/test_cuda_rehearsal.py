"""The tests of tests/cuda, which wait for a GPU, run with the CPU in its place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.mark.nightly
def test_they_pass_and_write_down_what_they_measure(tmp_path: Path):
    """Without the killed run, which tests/e2e and tests/chaos have on a CPU."""
    results = tmp_path / "results.jsonl"
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "cuda", "tests/cuda", "-k", "not killed_training"],
        cwd=ROOT,
        env=os.environ | {"CUDA_TESTS_DEVICE": "cpu", "CUDA_TESTS_RESULTS": str(results)},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stdout[-3000:]
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["test"].split(".py")[0] for line in lines} == {
        path.stem for path in ROOT.glob("tests/cuda/test_*.py")
    } - {"test_killed_training"}
