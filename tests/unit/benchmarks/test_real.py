"""`make real`: every stage, with a few updates of a tiny model, and then nothing more to do."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from autoregressive_toys import autoregressive, write_gguf
from conftest import ROOT

from dopsd.config.loading import checked

pytestmark = pytest.mark.full


def test_the_methods_sample_as_much_and_learn_at_one_rate(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    params = checked(importlib.import_module("real").settings(2, False), "params.yaml")
    rollouts, rates = {}, set()
    for name in params.matrix.methods:
        run = params.run("countdown", name, 0)
        asked = run.algorithm.forwards(run.sampling).rollouts * run.train.prompts_per_collect
        rollouts[name] = run.train.updates // run.algorithm.updates_of_collect * asked
        rates.add(run.train.learning_rate)
    assert rollouts == dict.fromkeys(("d_opsd", "rft", "trace_rl"), 640) and rates == {5e-5}


@pytest.mark.nightly
def test_every_stage_runs_once(tmp_path: Path):
    write_gguf(tmp_path / "toy.gguf", autoregressive("llama", 261, num_hidden_layers=2))
    words = ["--toy", "--gguf", str(tmp_path / "toy.gguf"), "--folder", str(tmp_path / "real")]
    command = [sys.executable, str(ROOT / "benchmarks/real.py"), *words, "--processes", "1"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr[-2000:]
    assert "adapting + " in first.stdout  # the estimate comes first
    project = tmp_path / "real/project"
    assert (project / "models/SmolLM2-135M-diffusion/adapt.json").is_file()
    for method in ("d_opsd", "rft"):
        assert (project / f"runs/countdown/{method}/0/test.json").is_file()
    assert (project / "reports/countdown/teacher").is_dir()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and "Running stage" not in again.stdout
