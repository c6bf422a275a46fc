"""`make real` and benchmarks/gpu: the small real model, with a few updates of a tiny one."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from autoregressive_toys import autoregressive, write_gguf
from conftest import ROOT

from dopsd.config.loading import checked
from dopsd.config.params import Params

pytestmark = pytest.mark.full

GPU = ROOT / "benchmarks/gpu"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GPU)
    monkeypatch.syspath_prepend(GPU.parent)
    return __import__(name)


def sampled(params: Params, method: str) -> tuple[float, int, float]:
    """Rollouts of an update, updates, and the learning rate."""
    run = params.run("countdown", method, 0)
    asked = run.algorithm.forwards(run.sampling).rollouts * run.train.prompts_per_collect
    return asked / run.algorithm.updates_of_collect, run.train.updates, run.train.learning_rate


def test_all_methods_sample_as_much_and_learn_at_one_rate(monkeypatch):
    gpu = module("real_model", monkeypatch)
    small = checked(gpu.real.settings(2, False), "params.yaml")
    assert small.matrix.methods == ["d_opsd", "rft", "trace_rl"]
    assert {sampled(small, name) for name in small.matrix.methods} == {(32, 20, 5e-5)}
    params = checked(gpu.real.settings(1, False, "1x80gb", gpu.CHANGES), "params.yaml")
    assert {sampled(params, name)[::2] for name in gpu.METHODS} == {(32, 5e-5)}


def test_the_model_travels_in_two_parts(tmp_path: Path, monkeypatch):
    pack = module("pack", monkeypatch)
    monkeypatch.setattr(pack, "GGUF", tmp_path / "model.gguf")
    monkeypatch.setattr(pack, "PARTS", [tmp_path / "model.1", tmp_path / "model.2"])
    content = os.urandom(1001)
    pack.GGUF.write_bytes(content)
    pack.split_model()
    assert not pack.GGUF.exists()  # --unpack makes it again
    pack.unpack()
    assert pack.GGUF.read_bytes() == content
    pack.GGUF.unlink()
    (tmp_path / "model.1/1.xz").unlink()
    with pytest.raises(SystemExit, match=r"only .*2.xz is here"):
        pack.unpack()


@pytest.mark.nightly
def test_every_stage_of_the_real_model_runs_on_a_toy(tmp_path: Path):
    write_gguf(tmp_path / "toy.gguf", autoregressive("llama", 261))
    out, words = tmp_path / "out", ["--toy", "--gguf", str(tmp_path / "toy.gguf")]
    words += ["--folder", str(tmp_path / "work"), "--out", str(out)]
    # trainings are stopped as soon as they may be
    words += ["--seconds", "1000", "--testing", "1000"]
    subprocess.run([sys.executable, GPU / "real_model.py", *words], check=True)
    stages = [json.loads(line) for line in (out / "stages.jsonl").read_text().splitlines()]
    assert [found["stage"] for found in stages][-3:] == ["updates", "test", "summary"]
    with tarfile.open(out / "results.tar.gz") as tar:
        names = tar.getnames()
    tested = {
        f"runs/countdown/{run}/test.json" for run in ("d_opsd/0", "d_opsd-jsd/0", "temporal/1")
    }
    assert tested <= set(names) and not any(name.endswith(".safetensors") for name in names)


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
