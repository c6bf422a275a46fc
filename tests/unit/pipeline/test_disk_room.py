"""Space that runs take on a disk, by hand and against a run that was made."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, write_params

from dopsd.config import profiles
from dopsd.config.loading import checked, load_params
from dopsd.core.errors import DopsdError
from dopsd.models.llada import LladaConfig
from dopsd.pipeline.dvc import disk_room
from dopsd.pipeline.dvc.disk_room import line, missing_bytes, missing_runs, run_bytes
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.training.config import CheckpointsConfig


def test_a_run_of_llada_8b_takes_what_was_counted_by_hand(monkeypatch: pytest.MonkeyPatch):
    settings = checked(profiles.resolve("llada-8b-gsm8k"), "profile").of("d_opsd")
    config = LladaConfig()
    shape = Shape(config, lora_parameters(config, settings))
    # rank 128 beside q, k and v of 4096 x 4096 and a layer of 4096 x 12288, in 32 blocks
    weights = 32 * 128 * (3 * 8192 + 16384)
    # 20 checkpoints, of each one file, two copies of the best, and two moments of the two newest
    assert run_bytes(settings, shape) == 4 * weights * (20 + 2 + 2 * 2)
    assert "about 17.4 GB: 20 checkpoints of 0.67 GB (one file for work/" in line(settings, shape)
    few = settings.model_copy(update={"checkpoints": CheckpointsConfig(keep="best_and_last")})
    assert run_bytes(few, shape) == 4 * weights * (2 + 2 + 2 * 1)
    assert run_bytes(few, shape, is_training=True) == 4 * weights * (20 + 2 + 2 * 2)
    few = settings.model_copy(update={"checkpoints": CheckpointsConfig(keep=3)})
    assert run_bytes(few, shape) == 4 * weights * (4 + 2 + 2 * 2)
    monkeypatch.setattr(disk_room, "has_links", lambda folder: False)
    # 3 places, and the best one in runs/ and in DVC's cache
    assert run_bytes(settings, shape) == 4 * weights * (3 * 20 + 2 + 2 * 2)
    assert "(copies in work/, runs/" in line(settings, shape)


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
    assert "(one file on each of 2 disks for work/ and runs/)" in line(params, shape)
    free = {project: 1e12, Path("mlartifacts").absolute(): 1e3}
    monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda p: SimpleNamespace(free=free[p]))
    with pytest.raises(DopsdError, match="are free"):
        disk_room.require_room(params)


def test_a_folder_that_cannot_be_written_has_no_links(tmp_path: Path):
    assert not disk_room.has_links(tmp_path / "none")
