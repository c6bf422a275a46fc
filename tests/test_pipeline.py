"""`dvc repro` on a small copy of this project: clean after a run, reruns only what changed, brings old data back."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT
from workspace import Workspace

from dopsd.provenance import sha256

ADAPTER = "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"
EVERY = {"prepare", "pretrain", "evaluate_base", "train", "evaluate", "select", "test", "report"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of a git checkout")
def test_repro_runs_what_changed_and_old_data_comes_back(tmp_path: Path):
    w = Workspace(tmp_path)
    assert w.repro() == EVERY
    assert "up to date" in w.dvc("status")
    w.commit()
    assert w.repro() == set()
    assert w.run("git", "status", "--porcelain") == ""
    adapter, data = sha256(tmp_path / ADAPTER), sha256(tmp_path / "data/sudoku/train.jsonl")
    metrics = (tmp_path / "runs/sudoku/base.json").read_bytes()

    section = {"task": "sudoku", "method": "d_opsd", "seeds": [0], "run": [], "tables": {"clipping": ["same"]}}
    w.write(ablate=section | {"variants": {"default": {}, "same": {"clip": None}}})
    said = w.run("python", "-m", "dopsd", "ablate", "clipping")
    assert "Running stage 'variant@default-0'" in said and "| same (params.yaml) |" in said
    assert sha256(tmp_path / ADAPTER.replace("d_opsd", "d_opsd-default")) == adapter
    assert "Running stage" not in w.run("python", "-m", "dopsd", "ablate", "clipping")

    w.write(train__learning_rate=2e-3)
    assert w.repro() == {"train", "evaluate", "select", "test", "report"}
    assert sha256(tmp_path / ADAPTER) != adapter
    w.write()
    assert w.repro() == set()  # all of it from the run cache
    assert sha256(tmp_path / ADAPTER) == adapter

    w.write(data__sudoku__seed=1)
    assert w.repro("evaluate_base") == {"prepare", "pretrain", "evaluate_base"}
    w.commit()
    assert sha256(tmp_path / "data/sudoku/train.jsonl") != data
    w.run("git", "checkout", "-q", "HEAD~1")
    w.dvc("checkout")
    assert sha256(tmp_path / "data/sudoku/train.jsonl") == data
    assert (tmp_path / "runs/sudoku/base.json").read_bytes() == metrics
    assert "up to date" in w.dvc("status")
