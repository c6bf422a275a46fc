"""`dvc repro` on a small copy of this project: clean after a run, reruns only what changed, brings old data back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small_params

from dopsd.provenance import sha256

ADAPTER = "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"
EVERY = {"prepare", "pretrain", "evaluate_base", "train", "evaluate", "select", "test", "report"}


class Workspace:
    """A git and DVC checkout of the working tree, with settings that take seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        ).stdout
        for name in names.splitlines():
            if (ROOT / name).is_file() and not name.startswith(("base/", "dvc.lock", "tests/")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        bin_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = os.environ | {"PATH": bin_path, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1"}
        self.env |= {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self.run("git", "init", "-q")
        self.write()
        self.commit()

    def run(self, *command: str) -> str:
        found = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout + found.stderr

    def dvc(self, *words: str) -> str:
        return self.run(sys.executable, "-m", "dvc", *words)

    def write(self, **changes: object) -> None:
        (self.folder / "params.yaml").write_text(yaml.safe_dump(small_params(**changes)))

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state")

    def repro(self, *words: str) -> set[str]:
        """Names of the stages that ran."""
        return set(re.findall(r"Running stage '(\w+)", self.dvc("--wait-for-lock", "repro", *words)))


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
