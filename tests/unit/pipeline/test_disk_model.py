"""Space that runs take on a disk, by hand and against a run that was made."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.config import profiles
from dopsd.config.loading import checked, load_params
from dopsd.models.llada import LladaConfig
from dopsd.pipeline.disk_model import line, matrix_bytes, run_bytes
from dopsd.pipeline.shape import Shape, lora_parameters


def test_a_run_of_llada_8b_takes_what_was_counted_by_hand():
    settings = checked(profiles.resolve("llada-8b-gsm8k"), "profile").of("d_opsd")
    config = LladaConfig()
    shape = Shape(config, lora_parameters(config, settings))
    # rank 128 beside q, k and v of 4096 x 4096 and a layer of 4096 x 12288, in 32 blocks
    weights = 32 * 128 * (3 * 8192 + 16384)
    # 20 checkpoints in 4 places, the selected one, and two moments of the two newest
    assert run_bytes(settings, shape) == 4 * weights * (4 * 20 + 1 + 2 * 2)
    assert "about 57.0 GB: 20 checkpoints of 0.67 GB in work/" in line(settings, shape)


def test_the_demo_takes_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = load_params(ROOT / "params.yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").symlink_to(ROOT / "base")
    # adapters of 659,560 bytes: 4 in work/, DVC's cache and mlartifacts each, 5 in runs/; and two
    # files of 1,323,248 bytes with moments
    measured = 17 * 659_560 + 2 * 1_323_248
    assert matrix_bytes(settings) == pytest.approx(measured, rel=0.01)
    done = tmp_path / "runs/sudoku/d_opsd/0/train.json"
    done.parent.mkdir(parents=True)
    done.touch()
    assert matrix_bytes(settings) == 0
