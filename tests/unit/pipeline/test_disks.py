"""Space that runs take on a disk, by hand, and which checkpoints of a tested run stay there."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, write_params

from dopsd.config import profiles
from dopsd.config.loading import checked, load_params
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.models.adapter_files import copy_checkpoint, run_checkpoints
from dopsd.models.llada import LladaConfig
from dopsd.pipeline.dvc import command as dvc
from dopsd.pipeline.dvc import disk_room
from dopsd.pipeline.dvc.disk_room import disk_line, missing_bytes, missing_runs, run_bytes
from dopsd.pipeline.dvc.pruning import remove_unwanted
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.pipeline.stages import select
from dopsd.training.config import CheckpointsConfig


def test_a_run_of_llada_8b_takes_what_was_counted_by_hand(monkeypatch: pytest.MonkeyPatch):
    settings = checked(profiles.resolve("llada-8b-gsm8k"), "profile").of("d_opsd")
    config = LladaConfig()
    shape = Shape(config, lora_parameters(config, settings))
    # rank 128 beside q, k and v of 4096 x 4096 and a layer of 4096 x 12288, in 32 blocks
    weights = 32 * 128 * (3 * 8192 + 16384)
    # 20 checkpoints, of each one file, two copies of the best, and two moments of the two newest
    assert run_bytes(settings, shape) == 4 * weights * (20 + 2 + 2 * 2)
    assert "about 17.4 GB: 20 checkpoints of 0.67 GB (one file for work/" in disk_line(
        settings, shape
    )
    few = settings.model_copy(update={"checkpoints": CheckpointsConfig(keep="best_and_last")})
    assert run_bytes(few, shape) == 4 * weights * (2 + 2 + 2 * 1)
    assert run_bytes(few, shape, is_training=True) == 4 * weights * (20 + 2 + 2 * 2)
    few = settings.model_copy(update={"checkpoints": CheckpointsConfig(keep=3)})
    assert run_bytes(few, shape) == 4 * weights * (4 + 2 + 2 * 2)
    monkeypatch.setattr(disk_room, "has_links", lambda folder: False)
    # 3 places, and the best one in runs/ and in DVC's cache
    assert run_bytes(settings, shape) == 4 * weights * (3 * 20 + 2 + 2 * 2)
    assert "(copies in work/, runs/" in disk_line(settings, shape)


def test_the_demo_takes_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = load_params(ROOT / "params.yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").symlink_to(ROOT / "base")
    # 4 adapters of 659,560 bytes, two copies of the best one, and two files of 1,323,248 bytes
    # with moments
    measured = 6 * 659_560 + 2 * 1_323_248
    assert missing_bytes(settings) == pytest.approx(measured, rel=0.01)
    settings.matrix.seeds.append(1)
    assert missing_bytes(settings) == pytest.approx(2 * measured, rel=0.01)


def test_a_matrix_that_does_not_fit_is_refused_before_it_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    free = 1e5
    monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    write_params(matrix__seeds=[0, 1, 2])
    with pytest.raises(DopsdError, match="3 missing runs of the matrix take about"):
        disk_room.require_room(load_params())
    write_params(matrix__seeds=[0], checkpoints__keep="best_and_last", train__updates=1)
    disk_room.require_room(load_params())


@pytest.mark.full
def test_a_run_of_other_settings_is_missing_and_what_has_been_written_needs_no_room_again(
    finished: Path,
):
    settings = load_params()
    assert missing_runs(settings) == [] and missing_bytes(settings) == 0
    write_params(train__learning_rate=0.5)
    assert len(missing_runs(load_params())) == 1 and missing_bytes(load_params()) > 0
    (settings.runs[0].key.folder / "train.json").unlink()
    taken = missing_bytes(settings)
    shutil.rmtree("work")
    assert taken < missing_bytes(settings)


def test_each_disk_takes_a_file_and_the_fullest_one_decides(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    params = load_params()
    shape = Shape(LladaConfig(), 100)
    assert disk_room.disks() == [project]
    Path("mlartifacts").symlink_to("/dev")
    assert disk_room.disks() == [project, Path("mlartifacts").absolute()]
    assert "(one file on each of 2 disks for work/ and runs/)" in disk_line(params, shape)
    free = {project: 1e12, Path("mlartifacts").absolute(): 1e3}
    monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda p: SimpleNamespace(free=free[p]))
    with pytest.raises(DopsdError, match="are free"):
        disk_room.require_room(params)


def test_a_folder_that_cannot_be_written_has_no_links(tmp_path: Path):
    assert not disk_room.has_links(tmp_path / "none")


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
