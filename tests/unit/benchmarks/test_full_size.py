"""The steps of the full-size benchmark, on a toy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.mark.nightly
@pytest.mark.parametrize("base", ["llada-8b", "a2d-0.6b"])
def test_the_steps_of_the_full_size_run_agree_on_a_toy(base: str, tmp_path: Path):
    words = [sys.executable, str(ROOT / "benchmarks" / "full_size.py"), "--toy", "--base", base]
    words += ["--folder", str(tmp_path), "--out", str(tmp_path / "report.json")]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["resumed_like_whole"] and report["export_like_memory"]
    assert report["steps"]["logits merged in memory"]["moved"] > 0.5
    assert all(step["peak_gb"] > 0 for step in report["steps"].values())
