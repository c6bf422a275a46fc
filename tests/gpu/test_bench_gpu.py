"""`dopsd bench-gpu` on a pretended GPU, to its end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dopsd.pipeline.bench_gpu.cases import CASES
from dopsd.pipeline.bench_gpu.checks import CHECKS
from gpu import runs

OUT = Path("reports/bench-gpu")


@pytest.mark.full
def test_it_runs_to_its_end_and_finds_the_modelled_figures_that_ship(tmp_path, monkeypatch):
    """If a figure is off by 2%: `PYTHONPATH=tests python -m gpu modelled` writes them again."""
    monkeypatch.chdir(tmp_path)
    runs.output(runs.start("run", "bench-gpu", "--layers", "4"))
    results = json.loads((OUT / "bench-gpu.json").read_text())
    parts = {part["name"]: part for part in results["parts"]}
    assert results["is_complete"] and results["machine"]["is_pretended"]
    assert all(parts[name]["found"]["is_within"] for name in CHECKS)
    for case in CASES:
        assert parts[case.name]["ratios"] == pytest.approx({"ms": 1, "peak_gb": 1}, rel=0.02)
    assert parts["two ranks with NCCL"]["reason"] == "needs two GPUs, and this machine shows 1"
    page = (OUT / "bench-gpu.md").read_text()
    assert "# dopsd bench-gpu: pretended H100" in page and "nothing was measured" in page
    assert page.count("| 1.00 |") == 2 * (len(CASES) + 2)


@pytest.mark.full
def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = runs.start("run", "bench-gpu", "--layers", "4")
    while "3/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert "bench-gpu: interrupted; what was measured is in" in runs.output(process, 130)
    results = json.loads((OUT / "bench-gpu.json").read_text())
    assert len(results["parts"]) == 2 and not results["is_complete"]
    assert "later parts are missing" in (OUT / "bench-gpu.md").read_text()
