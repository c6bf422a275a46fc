"""Settings and a finished run of release 0.1 (tests/release_0_1, made by its own commands) are read
as they stand.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, write_params

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.models.adapter_files import lora_of


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
    page = Path("reports/sudoku-d_opsd-0.html").read_text()
    assert "<dt>Tested on</dt><dd>unknown</dd>" in page and "Measured differently" not in page


def test_settings_and_an_adapter_of_release_0_1_have_the_shapes_that_they_had(release):
    run = load_params().run("sudoku", "d_opsd", 0)
    assert run.train.updates == 2 and run.algorithm.attempts == 3
    saved = lora_of(run.key.folder / "best")
    assert (saved.r, saved.alpha) == (run.train.lora.r, run.train.lora.alpha) == (4, 4)


@pytest.fixture
def older(project: Path) -> Path:
    """A project as release 0.1 left it: its base in base/ itself, which its params.yaml names."""
    Path("base/sudoku").rename("moving")
    Path("base").rmdir()
    Path("moving").rename("base")
    write_params(model__path="base", train__updates=2)
    return project


def test_a_base_of_release_0_1_is_used_where_it_lies(older, capsys):
    assert main(["check"]) == main(["pretrain"]) == main(["train"]) == 0
    said = capsys.readouterr().err
    assert "pretrain: base is up to date" in said and "base is now" not in said
    assert not Path("base/sudoku").exists()


def test_a_run_and_its_evaluations_stay_where_the_base_has_moved(older, capsys):
    """The path is no part of what a run is, and one line says the new one."""
    write_params(model__path="base", train__updates=4)
    stopped_at = older / "work"
    assert main(["train"]) == main(["evaluate_base"]) == 0
    learnt, evaluated = sorted(stopped_at.glob("train-*")), sorted(stopped_at.glob("eval/*"))
    Path("base").rename("moving")
    Path("base").mkdir()
    Path("moving").rename("base/sudoku")
    capsys.readouterr()
    write_params(model__path="base", train__updates=6)
    assert main(["train"]) == 0
    said = capsys.readouterr().err
    assert said.count("params.yaml: model.path: base is now base/sudoku") == 1
    assert "starts from update 4" in said
    assert main(["evaluate_base"]) == 0
    assert sorted(stopped_at.glob("eval/*")) == evaluated
    assert set(learnt) < set(stopped_at.glob("train-*"))
    write_params(model__path="base/sudoku", train__updates=6)
    assert main(["train"]) == main(["check"]) == 0
    assert "is now" not in capsys.readouterr().err
