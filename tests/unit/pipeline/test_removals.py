"""Which files of finished runs are links, and which go, with DVC for real and stages that are
made by hand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.core.files import LARGE, PLANS
from dopsd.pipeline import keeping
from dopsd.training.run_identity import KEYS, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable

RUN, TWIN = Path("runs/sudoku/d_opsd/0"), Path("runs/sudoku/d_opsd-default/0")
FOLDER = "runs/${item.task}/${item.method}/${item.seed}"
STAGES = {  # dependency, output
    "train": (None, f"{FOLDER}/train"),
    "evaluate": (f"{FOLDER}/train", f"{FOLDER}/curve.csv"),
    "select": (f"{FOLDER}/train", f"{FOLDER}/best"),
    "test": (f"{FOLDER}/best", f"{FOLDER}/test"),
}


def pipeline() -> dict[str, object]:
    """Stages whose command fails: DVC must find what it has recorded."""
    keys = {"task": "tasks", "method": "methods", "seed": "seeds"}
    matrix = {one: f"${{matrix.{many}}}" for one, many in keys.items()}
    made = {
        name: {"matrix": matrix, "cmd": f"false {FOLDER}", "params": ["train"], "outs": [out]}
        | ({"deps": [dep]} if dep else {})
        for name, (dep, out) in STAGES.items()
    }
    variants = {"variant": "${ablate.run}", "seed": "${ablate.seeds}"}
    made["variant"] = {"matrix": variants, "cmd": "false", "outs": [str(TWIN)]}
    return {"stages": made}


def dvc(*words: str) -> str:
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_run(folder: Path) -> None:
    """Checkpoints of updates 1 to 4, of which that of update 2 is the best."""
    scratch = scratch_folder(load_params().runs[0])
    for update in (1, 2, 3, 4):
        step = folder / "train" / f"step-00000{update}"
        step.mkdir(parents=True)
        (step / "adapter").write_bytes(bytes([update]) * LARGE)
        shutil.copytree(step, scratch / step.name, dirs_exist_ok=True)
    shutil.copytree(folder / "train/step-000002", folder / "best")
    (folder / "best/select.json").write_text('{"update": 2}')
    (folder / "curve.csv").touch()
    (folder / "test").mkdir()
    (folder / "test/paired.json").touch()


def settings(**changes: object) -> None:
    write_params(
        **{"ablate__run": ["default"], "ablate__seeds": [0]} | changes, checkpoints__keep=1
    )


@pytest.fixture(scope="module")
def recorded(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and the variant of the same settings; DVC has recorded the results of both."""
    folder, before = tmp_path_factory.mktemp("recorded") / "project", Path.cwd()
    shutil.copytree(prepared, folder)
    os.chdir(folder)
    try:
        Path("dvc.yaml").write_text(yaml.safe_dump(pipeline(), sort_keys=False))
        settings()
        for run in (RUN, TWIN):
            make_run(run)
        dvc("init", "--no-scm", "--quiet")
        dvc("commit", "--quiet", "--force")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def workspace(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(recorded, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")


def run_dvc(words: list[str]) -> int:
    dvc(*words)
    return 0


def is_interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def keep(dvc: Callable[[list[str]], int]) -> None:
    params = load_params()
    keeping.keep_wanted(params, params.runs, dvc)


def interrupt_removal() -> None:
    with suppress(KeyboardInterrupt):
        keep(is_interrupted)
    assert steps(RUN) == [2, 4] and [*PLANS.iterdir()]


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in keeping.steps_in(folder / "train")]


def test_results_of_other_settings_are_not_recorded_when_a_removal_is_finished(workspace: None):
    interrupt_removal()
    settings(train__learning_rate=0.123)
    keeping.finish_removals(run_dvc)
    assert not [*PLANS.iterdir()]
    assert "train@sudoku-d_opsd-0" in json.loads(dvc("status", "--json"))
    settings()
    dvc("repro", "train")  # its command would fail: DVC takes what it has recorded
    assert steps(RUN) == [1, 2, 3, 4]


def test_a_removal_of_a_run_that_left_the_matrix_is_given_up(workspace: None):
    interrupt_removal()
    settings(matrix__seeds=[1])
    keeping.finish_removals(run_dvc)
    assert not [*PLANS.iterdir()]


def test_objects_go_also_when_settings_change_after_dvc_has_recorded_what_is_left(
    workspace: None, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(keeping, "_forget_runs", is_interrupted)
        keep(run_dvc)
    settings(train__learning_rate=0.123)
    keeping.finish_removals(is_interrupted)
    assert steps(RUN) == [2, 4] and not [*PLANS.iterdir()]


def test_checkpoints_that_another_run_needs_stay(workspace: None):
    run = load_params().runs[0]
    keep(run_dvc)
    assert json.loads(dvc("status", "--json")) == {}
    assert steps(RUN) == [2, 4] and steps(TWIN) == [1, 2, 3, 4]
    scratch, doomed = scratch_folder(run), [RUN / "train/step-000001"]
    assert len(keeping.steps_in(scratch)) == 4  # which the variant may still have to use

    def removed() -> list[str]:
        return keeping._plan(load_params(), run, doomed)["doomed"]

    settings(ablate__run=[])
    assert removed() == [str(doomed[0]), str(scratch / "step-000001")]
    cells = {"cells": ["sudoku/d_opsd-default/0", "sudoku/d_opsd/0"]}
    (scratch / "run.json").write_text(json.dumps(dict.fromkeys(KEYS) | cells))
    assert removed() == [str(doomed[0])]


def inodes(*folders: Path) -> list[set[int]]:
    return [{p.stat().st_ino for p in folder.glob("**/adapter")} for folder in folders]


def test_copies_are_one_file_also_after_a_removal(workspace: None, monkeypatch: pytest.MonkeyPatch):
    params = load_params()
    places = RUN / "train", TWIN / "train", scratch_folder(params.runs[0])
    cache = keeping.Outputs()
    for _ in range(2):
        with monkeypatch.context() as patch:  # dvc.lock is read once for both runs
            patch.setattr(keeping, "Outputs", iter([cache]).__next__)
            keeping.link_copies(keeping.runs_of(params, ["repro"]))
        main, twin, scratch = inodes(*places)
        assert main == twin == scratch and len(main) == 4
        assert inodes(RUN / "best")[0] < main and inodes(TWIN / "best")[0] < main
    objects = [obj for _, obj in cache.files(RUN / "train")]
    assert {obj.stat().st_ino for obj in objects} == main
    assert {obj.stat().st_mode & 0o777 for obj in objects} == {0o444}  # else DVC reads them again
    keep(run_dvc)
    main, twin, scratch = inodes(*places)
    assert len(main) == 2 and main < twin == scratch and len(twin) == 4


def test_a_command_is_about_the_runs_of_its_targets(workspace: None):
    def runs(*words: str) -> list[str]:
        return [run.key.method for run in keeping.runs_of(load_params(), ["repro", *words])]

    assert runs("--pull") == runs("prepare") == ["d_opsd", "d_opsd-default"]
    assert runs("--downstream", "prepare@sudoku") == runs("prepare")
    assert runs("--glob", "train@sudoku-*") == ["d_opsd"]
    assert runs("-s", "train@sudoku-d_opsd-0") == ["d_opsd"]
    assert runs("variant@default-0") == ["d_opsd-default"] and runs("prepare@sudoku") == []
