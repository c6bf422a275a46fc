"""A task of reasoning-gym from its settings to the report, killed on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deployed import run_by
from waiting import until
from workspace import CHANGES as TWO_UPDATES
from workspace import Workspace, results

pytest.importorskip("reasoning_gym", reason="needs the extra gym")
TASK, OTHER = "gym_basic_arithmetic", "gym_spell_backward"
SIZES = {"train": 32, "validation": 12, "test": 12}
SECTION = {"type": "reasoning_gym", "dataset": "basic_arithmetic", "version": "0.1.25", **SIZES}


OTHERS = SECTION | {"dataset": "spell_backward"}
CHANGES = {"matrix__tasks": [TASK], f"data__{TASK}": SECTION, f"data__{OTHER}": OTHERS}
CHANGES |= {"pretrain__tasks": [], "evaluate__watch": [OTHER], "method__d_opsd__keep": "all"}


def results_of(made: Workspace) -> dict[str, object]:
    """Problems and checkpoints, by their digests."""
    found = results(made.folder)
    return {name: v for name, v in found.items() if "/train" in name or name.startswith("data/")}


@pytest.mark.full
def test_a_killed_run_continues_to_the_same_bytes_and_another_task_is_watched(tmp_path):
    cut = Workspace(tmp_path / "project", is_warm=True)
    cut.write(**CHANGES, train__updates=40)
    said = cut.run("dopsd", "repro", "evaluate_base")
    assert f"{TASK}: 32 train problems" in said and f"{OTHER}: 12 test problems" in said
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = {"cwd": cut.folder, "env": cut.env | {"PATH": path}}
    words = [sys.executable, "-m", "dopsd", "repro", "train"]
    process = subprocess.Popen(words, **here, start_new_session=True)
    until(lambda: any((cut.folder / "work").glob("train-*/step-*")))
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert "continuing after update" in cut.run("dopsd", "repro")
    assert json.loads(cut.dvc("status", "--json")) == {}
    tested = cut.folder / f"runs/{TASK}/d_opsd/0/test/paired.json"
    assert json.loads(tested.read_text())["watched"].keys() == {OTHER}
    found = trained(cut.folder)
    shutil.rmtree(cut.folder / "work")
    for path in found:
        path.unlink()
    cut.run("dopsd", "train", "--task", TASK, "--method", "d_opsd", "--seed", "0")
    assert trained(cut.folder) == found and len(found) > 5


def trained(folder: Path) -> dict[Path, bytes]:
    """All files that training leaves for other stages."""
    run = folder / f"runs/{TASK}/d_opsd/0"
    paths = [*run.glob("train/**/*"), *run.glob("train.*")]
    return {path: path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.nightly
def test_dvc_and_the_deployment_make_the_same_bytes(tmp_path):
    by_dvc, deployed = (Workspace(tmp_path / name, is_warm=True) for name in ("dvc", "deployed"))
    by_dvc.write(**TWO_UPDATES | CHANGES)
    by_dvc.run("dopsd", "repro")  # which adds the task to recipes.yaml
    run_by("deployment", deployed, CHANGES)
    assert results_of(deployed) == results_of(by_dvc) and len(results_of(deployed)) > 5
