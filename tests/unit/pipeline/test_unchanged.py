"""Settings and recipes that change while DVC runs a stage: its result is not recorded as theirs."""

import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import ROOT, write_params

from dopsd.config.loading import load_params
from dopsd.core.environment import DVC_STAGE
from dopsd.core.errors import DopsdError
from dopsd.pipeline.recipes import unchanged

PIPELINE = """
stages:
  train:
    matrix: {task: [sudoku]}
    cmd: "%s train.py --task ${item.task}"
    params: [train, "method.${item.task}", {recipes.yaml: [core]}]
    outs: [runs]
"""
TRAIN = """
import pathlib, sys
from dopsd.cli.main import main
from dopsd.training.trainer import Trainer

step = Trainer.accumulate
def edited(self):
    if self.update == 2:
        text = pathlib.Path("params.yaml").read_text()
        pathlib.Path("params.yaml").write_text(text.replace("updates: 4", "updates: 6"))
    return step(self)
Trainer.accumulate = edited
sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.fixture
def stage(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DVC_STAGE, "train@sudoku")
    write_params()
    Path("dvc.yaml").write_text(PIPELINE)
    Path("recipes.yaml").write_text("core: 1")


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda: write_params(train__updates=7), "params.yaml (train)"),
        (lambda: write_params(evaluate__bootstrap=700), ""),
        (lambda: Path("recipes.yaml").write_text("core: 2"), "recipes.yaml"),
    ],
)
def test_only_what_the_stage_declares_counts(stage, edit, named):
    said = pytest.raises(DopsdError, match=re.escape(f"train: {named} changed during the stage"))
    with said if named else nullcontext() as error, unchanged(Path("params.yaml"), load_params()):
        edit()
    assert error is None or error.value.exit_code == 2


@pytest.mark.full
def test_dvc_does_not_record_settings_that_were_written_in_the_middle_of_training(project):
    write_params(train__updates=4)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q", "--force"], check=True)
    Path("train.py").write_text(TRAIN)
    Path("dvc.yaml").write_text(PIPELINE.replace("method.${item.task}", "matrix") % sys.executable)
    shutil.copyfile(ROOT / "recipes.yaml", "recipes.yaml")

    def repro() -> str:
        words = [sys.executable, "-m", "dvc", "repro"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(words, text=True, check=False, **streams).stdout

    said = repro()
    assert "params.yaml (train) changed during the stage" in said and "exited with 2" in said
    assert not Path("dvc.lock").exists()
    said = repro()
    assert "train: continuing after update 4" in said or "starts from update 4" in said
    assert (Path("runs/sudoku/d_opsd/0/train/step-000006")).is_dir() and Path("dvc.lock").is_file()
