"""Checkpoints of a whole run: one file each, only the wanted ones, and what a remote brings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from workspace import Workspace

from dopsd.core.environment import RESTORE_ONLY
from dopsd.core.tables import read_table

pytestmark = pytest.mark.full
RUN = Path("runs/sudoku/d_opsd/0")
SHORT = {"train__updates": 4, "train__checkpoint_every": 1, "tracking__enabled": True}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    made = Workspace(tmp_path / "project", is_warm=True)
    made.write(**SHORT)
    monkeypatch.chdir(made.folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return made


def adapters(folder: Path) -> set[int]:
    """Inodes of the adapters below a folder."""
    return {p.stat().st_ino for p in folder.rglob("*") if p.is_file() and is_tensors(p)}


def is_tensors(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"base_model.' in file.read(4096)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-??????"))


def test_a_checkpoint_is_one_file_and_the_unwanted_go(workspace: Workspace, tmp_path: Path):
    workspace.run("dopsd", "repro")
    workspace.run("dopsd", "publish")
    files = [adapters(Path(name)) for name in ("work", RUN / "train", "mlartifacts", ".dvc/cache")]
    assert files[0] == files[1] == files[2] and len(files[0]) == 4
    assert len(files[3]) == 1  # a copy of the best one

    curve = (RUN / "curve.csv").read_bytes()
    workspace.run("dopsd", "params", "--set", "checkpoints.keep=best_and_last")
    said = workspace.run("dopsd", "repro")
    assert "Running stage" not in said and "keep: sudoku/d_opsd/0:" in said
    best = max(read_table(RUN / "curve.csv")[1:], key=lambda row: row["accuracy"])["update"]
    wanted = sorted({int(best), 4})
    (scratch,) = Path("work").glob("train-*")
    assert steps(RUN / "train") == steps(scratch) == wanted
    assert (RUN / "curve.csv").read_bytes() == curve
    assert workspace.dvc("status", "--json").strip() == "{}"
    another_machine_takes_the_results(workspace, tmp_path)

    workspace.run("dopsd", "evaluate", "--task", "sudoku", "--method", "d_opsd", "--seed", "0")
    workspace.run("dopsd", "params", "--set", "train.learning_rate=0.004")
    assert "keep: sudoku/d_opsd/0:" in workspace.run("dopsd", "repro")  # at the end of its test
    assert 4 in steps(RUN / "train") and len(steps(RUN / "train")) <= 2


def another_machine_takes_the_results(workspace: Workspace, tmp_path: Path) -> None:
    workspace.dvc("remote", "add", "--local", "--default", "store", str(tmp_path / "store"))
    workspace.dvc("push", "--quiet", "--run-cache")
    other = Workspace(tmp_path / "other", is_warm=True)
    for name in ("params.yaml", ".dvc/config.local"):
        shutil.copyfile(workspace.folder / name, other.folder / name)
    other.env[RESTORE_ONLY] = "1"
    other.run("dopsd", "repro", "--pull", "report")
    for name in ("curve.csv", "train/checkpoints.json", "best/adapter_model.safetensors"):
        assert (other.folder / RUN / name).read_bytes() == (RUN / name).read_bytes()
    assert steps(other.folder / RUN / "train") == []
