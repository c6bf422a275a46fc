"""Which checkpoints of a tested run stay, and where later stages find them."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.models.adapter_files import copy_checkpoint, run_checkpoints
from dopsd.pipeline.dvc import command as dvc
from dopsd.pipeline.dvc import disk_room
from dopsd.pipeline.dvc.pruning import remove_unwanted
from dopsd.pipeline.stages import select

RUN, SCRATCH = Path("runs/sudoku/d_opsd/0"), Path("work/train-1-2")
TRAIN = RUN / "train"


@pytest.fixture
def run(project: Path) -> None:
    """A tested run with checkpoints of updates 1 to 4, of which that of update 2 is the best."""
    digests = {}
    for update in (1, 2, 3, 4):
        step = SCRATCH / f"step-00000{update}"
        step.mkdir(parents=True)
        (step / "adapter_model.safetensors").write_bytes(bytes([update]))
        (step / "adapter_config.json").write_text("{}")
        TRAIN.mkdir(parents=True, exist_ok=True)
        copy_checkpoint(step, TRAIN / step.name)
        copied = json.loads((TRAIN / step.name / "digests.json").read_text())
        write_json(step / "digests.json", copied)
        digests[step.name] = copied["adapter_model.safetensors"]
    write_json(TRAIN / "checkpoints.json", digests)
    write_json(RUN / "train.json", {"fingerprint": SCRATCH.name})
    selected = {"update": 2, "digest": digests["step-000002"]}
    write_json(RUN / "best/select.json", selected)
    write_json(RUN / "test/paired.json", {"selected": selected})


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


def keep(wanted: object) -> list[int]:
    write_params(checkpoints__keep=wanted)
    params = load_params()
    remove_unwanted(params, params.runs[0].key)
    return steps(TRAIN)


@pytest.mark.parametrize(
    ("wanted", "left"), [("all", [1, 2, 3, 4]), ("best_and_last", [2, 4]), (2, [2, 3, 4])]
)
def test_the_best_and_the_newest_stay(run: None, wanted: object, left: list[int]):
    assert keep(wanted) == left == steps(SCRATCH)
    assert keep(wanted) == left


def test_checkpoints_that_another_run_resumes_from_stay_in_work(run: None):
    cells = {"cells": ["sudoku/d_opsd-default/0", "sudoku/d_opsd/0"]}
    write_json(SCRATCH / "run.json", cells)
    assert keep(1) == [2, 4] and steps(SCRATCH) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["best/select.json", "test/paired.json", "train/checkpoints.json"])
def test_a_run_that_was_trained_or_selected_again_since_its_test_stays_whole(run: None, name: str):
    write_json(RUN / name, {"step-000002": "other", "update": 3, "digest": "other"})
    assert keep(1) == [1, 2, 3, 4]


def test_checkpoints_of_another_run_are_not_taken_for_those_of_the_manifest(run: None):
    """As after `git checkout` and `dvc checkout`, which bring the manifest alone."""
    (TRAIN / "step-000001/digests.json").write_text('{"adapter_model.safetensors": "other"}')
    shutil.rmtree(TRAIN / "step-000002")
    assert [path.parent for path in run_checkpoints(TRAIN)] == [SCRATCH, SCRATCH, TRAIN, TRAIN]
    shutil.rmtree(SCRATCH)
    assert [path.name for path in run_checkpoints(TRAIN)] == ["step-000003", "step-000004"]
    summary = dict.fromkeys(("best", "base", "n", "split", "protocol"), 0) | {"best_update": 2}
    write_json(RUN / "evaluate.json", summary)
    with pytest.raises(DopsdError, match="train/step-000002: is not here; run `dopsd train"):
        select.run(load_params(), "sudoku", "d_opsd", 0)


@pytest.mark.parametrize(
    ("words", "is_whole"),
    [
        (["repro"], True),
        (["repro", "--pull"], True),
        (["repro", "prepare"], False),
        (["repro", "--dry"], False),
        (["commit"], False),
    ],
)
def test_the_whole_matrix_needs_room_and_loses_what_is_unwanted(
    run: None, monkeypatch: pytest.MonkeyPatch, words: list[str], is_whole: bool
):
    asked: list[object] = []
    monkeypatch.setattr(dvc.Writing, "_run_dvc", lambda _: os.EX_OK)
    monkeypatch.setattr(disk_room, "require_room", asked.append)
    write_params(checkpoints__keep=1)
    Path("dvc.yaml").touch()
    assert dvc.run(words) == 0
    assert bool(asked) == is_whole and steps(TRAIN) == ([2, 4] if is_whole else [1, 2, 3, 4])
