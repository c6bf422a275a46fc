"""One copy of a checkpoint on a disk, and only the wanted ones of a finished run; DVC agrees."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from conftest import ROOT
from workspace import Workspace

from dopsd.config.loading import load_params
from dopsd.core.environment import RESTORE_ONLY
from dopsd.core.files import LARGE
from dopsd.core.tables import read_table
from dopsd.pipeline import keeping

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of a git checkout"),
]
RUN = Path("runs/sudoku/d_opsd/0")
SHORT = {"train__updates": 4, "train__checkpoint_every": 1, "tracking__enabled": True}
WIDE = {"train__lora__r": 64, "train__lora__alpha": 64}  # adapters that are worth a link


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    made = Workspace(tmp_path / "project")
    made.write(**SHORT, **WIDE)
    monkeypatch.chdir(made.folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return made


def adapters(folder: Path) -> set[int]:
    """Inodes of the adapters below a folder."""
    return {
        path.stat().st_ino
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size >= LARGE and is_tensors(path)
    }


def is_tensors(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"base_model' in file.read(4096)


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in keeping.steps_in(folder)]


def test_every_copy_of_a_checkpoint_is_one_file_and_the_unwanted_go(
    workspace: Workspace, tmp_path: Path
):
    workspace.run("dopsd", "repro")
    workspace.run("dopsd", "publish")
    folders = {name: adapters(Path(name)) for name in ("work", "runs", ".dvc/cache", "mlartifacts")}
    assert len(folders["runs"]) == 4  # `best` is one of them
    assert folders["work"] == folders["runs"] == folders[".dvc/cache"] == folders["mlartifacts"]

    curve = (RUN / "curve.csv").read_bytes()
    workspace.run("dopsd", "params", "--set", "checkpoints.keep=best_and_last")
    said = workspace.run("dopsd", "repro")
    assert "Running stage" not in said and "keep: sudoku/d_opsd/0:" in said
    best = max(read_table(RUN / "curve.csv")[1:], key=lambda row: row["accuracy"])["update"]
    wanted = sorted({int(best), 4})
    (scratch,) = Path("work").glob("train-*")
    assert steps(RUN / "train") == steps(scratch) == wanted
    left = [adapters(Path(name)) for name in ("work", "runs", ".dvc/cache")]
    assert left[0] == left[1] == left[2] and len(left[0]) == len(wanted)
    assert (RUN / "curve.csv").read_bytes() == curve
    assert workspace.dvc("status", "--json").strip() == "{}"
    assert not workspace.repro()
    another_machine_takes_what_is_left(workspace, tmp_path, wanted)


def another_machine_takes_what_is_left(
    workspace: Workspace, tmp_path: Path, wanted: list[int]
) -> None:
    workspace.dvc("remote", "add", "--local", "--default", "store", str(tmp_path / "store"))
    workspace.dvc("push", "--quiet", "--run-cache")
    other = Workspace(tmp_path / "other")
    for name in ("params.yaml", ".dvc/config.local"):
        shutil.copyfile(workspace.folder / name, other.folder / name)
    shutil.copytree("base", other.folder / "base")
    other.env[RESTORE_ONLY] = "1"
    other.run("dopsd", "repro", "--pull", "report")
    assert steps(other.folder / RUN / "train") == wanted
    assert (other.folder / RUN / "curve.csv").read_bytes() == (RUN / "curve.csv").read_bytes()


def test_a_removal_that_was_cut_off_is_finished_and_stale_results_are_left_alone(
    workspace: Workspace,
):
    workspace.run("dopsd", "repro")
    params = load_params()
    params = params.model_copy(
        update={"checkpoints": params.checkpoints.model_copy(update={"keep": 1})}
    )

    def dies(words: list[str]) -> int:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        keeping.keep_wanted(params, params.runs, dies)
    assert workspace.dvc("status", "--json").strip() != "{}"
    workspace.run("dopsd", "params", "--set", "checkpoints.keep=1")
    assert "Running stage" not in workspace.run("dopsd", "repro")
    assert workspace.dvc("status", "--json").strip() == "{}"
    assert 4 in steps(RUN / "train") and len(steps(RUN / "train")) <= 2

    workspace.write(**SHORT, **WIDE, train__learning_rate=0.004, checkpoints__keep="best_and_last")
    workspace.run("dopsd", "train")  # other checkpoints, of which DVC knows nothing
    assert steps(RUN / "train") == [1, 2, 3, 4]
    workspace.run("dopsd", "repro", "prepare")
    assert steps(RUN / "train") == [1, 2, 3, 4]
