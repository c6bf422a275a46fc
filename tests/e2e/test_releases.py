"""Settings and a finished run of release 0.1 (tests/release_0_1, made by its own commands) are read as they stand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.models.lora import lora_of


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "tests/release_0_1", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    assert main(["prepare"]) == 0
    return tmp_path / "project"


def test_a_finished_run_of_release_0_1_is_summed_up_and_drawn(release, capsys):
    assert main(["summary"]) == 0
    assert "sudoku/d_opsd/0: checkpoint" in capsys.readouterr().out
    assert main(["report", "--task", "sudoku", "--method", "d_opsd", "--seed", "0"]) == 0
    summary = json.loads(Path("reports/sudoku/d_opsd/0/summary.json").read_text())
    assert summary["costs"]["updates"] == 2
    assert (release / "reports/sudoku/d_opsd/0/trajectory.png").is_file()


def test_settings_and_an_adapter_of_release_0_1_have_the_shapes_that_they_had(release):
    run = load_params().run("sudoku", "d_opsd", 0)
    assert run.train.updates == 2 and run.algorithm.attempts == 3
    saved = lora_of(run.key.folder / "best")
    assert (saved.r, saved.alpha) == (run.train.lora.r, run.train.lora.alpha) == (4, 4)
