"""benchmarks/gpu: the run of the small real model survives what it meets."""

from __future__ import annotations

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

pytestmark = pytest.mark.full

GPU = ROOT / "benchmarks/gpu"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GPU)
    monkeypatch.syspath_prepend(GPU.parent)
    return __import__(name)


def test_all_methods_sample_as_much_and_learn_at_one_rate(monkeypatch):
    gpu = module("real_model", monkeypatch)
    params = checked(gpu.real.settings(1, False, "1x80gb", gpu.CHANGES), "params.yaml")
    asked, rates = {}, set()
    for method in gpu.METHODS:
        run = params.run("countdown", method, 0)
        each = run.algorithm.forwards(run.sampling).rollouts * run.train.prompts_per_collect
        asked[method] = each / run.algorithm.updates_of_collect
        rates.add(run.train.learning_rate)
    assert asked == dict.fromkeys(gpu.METHODS, 32) and rates == {5e-5}


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
    words += [
        "--seconds",
        "1000",
        "--testing",
        "1000",
    ]  # trainings are stopped as soon as they may be
    subprocess.run([sys.executable, GPU / "real_model.py", *words], check=True)
    stages = [json.loads(line) for line in (out / "stages.jsonl").read_text().splitlines()]
    assert [found["stage"] for found in stages][-3:] == ["updates", "test", "summary"]
    with tarfile.open(out / "results.tar.gz") as tar:
        names = tar.getnames()
    tested = {
        f"runs/countdown/{run}/test.json" for run in ("d_opsd/0", "d_opsd-jsd/0", "temporal/1")
    }
    assert tested <= set(names) and not any(name.endswith(".safetensors") for name in names)
