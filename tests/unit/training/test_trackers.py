"""`tracking.also`: the updates of a run as TensorBoard, W&B and Trackio keep them, offline."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write_params

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.files import WORK
from dopsd.training.run_identity import identify
from dopsd.training.trackers import OF_OTHER_RUNS

TRACKERS = ["tensorboard", "wandb", "trackio"]
LEFT = {  # by another program, or another place: none may enter a result
    **dict.fromkeys(OF_OTHER_RUNS, "left"),
    "WANDB_RESUME": "must",
    "MLFLOW_RUN_ID": "left",
    "MLFLOW_EXPERIMENT_NAME": "left",
    "TZ": "Pacific/Kiritimati",
    "LC_ALL": "tr_TR.UTF-8",
    "LANGUAGE": "tr",
    "PYTHONHASHSEED": "7",
    "SOURCE_DATE_EPOCH": "0",
}


@pytest.fixture
def losses(project: Path) -> list[tuple[int, float]]:
    """Step and loss of each update of a run whose metrics went to all trackers."""
    for name in TRACKERS:
        pytest.importorskip(name, reason="needs the trackers of the extra dev")
    write_params(tracking__also=TRACKERS)
    offline = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(Path("trackio").absolute())} | LEFT
    words, env = [sys.executable, "-m", "dopsd", "train"], {**os.environ, **offline}
    # a process of its own: Trackio reads its folder as it is imported
    ran = subprocess.run(words, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    scratch = identify(load_params().run("sudoku", "d_opsd", 0)).folder
    rows = map(json.loads, (scratch / "log.jsonl").read_text().splitlines())
    return [(row["update"], row["loss"]) for row in rows]


@pytest.mark.full
def test_each_tracker_has_every_update(losses):
    assert len(losses) == 4
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (WORK / "tensorboard").glob("sudoku-d_opsd-0-train-*/dopsd")
    events = EventAccumulator(str(folder))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == pytest.approx([*map(pytest.approx, losses)])
    (database,) = Path("trackio").glob("dopsd*.db")
    with sqlite3.connect(database) as connection:
        kept = connection.execute("select step, metrics, run_name from metrics order by step")
        sent = [(step, json.loads(metrics)["loss"], run) for step, metrics, run in kept]
    assert [row[:2] for row in sent] == pytest.approx([*map(pytest.approx, losses)])
    assert {run for *_, run in sent} == {"sudoku/d_opsd/0"}
    (run,) = (WORK / "wandb").glob("offline-run-*/run-*.wandb")
    assert "left" not in run.name and len(run.stem) == len("run-") + 8  # an id of W&B's own
    assert run.read_bytes().count(b"shared_mass") >= 1
    assert b"sudoku/d_opsd/0" in run.read_bytes()
    WORK.rename("elsewhere")  # the same run without trackers, and without these variables
    write_params(tracking__also=[])
    assert main(["train"]) == 0
    rows = (identify(load_params().run("sudoku", "d_opsd", 0)).folder / "log.jsonl").read_text()
    plain = [(row["update"], row["loss"]) for row in map(json.loads, rows.splitlines())]
    assert plain == losses


def test_a_tracker_that_is_not_installed_or_does_not_start_is_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    pytest.importorskip("wandb")
    from accelerate.tracking import WandBTracker

    from dopsd.training import trackers

    def refuses(self):
        raise ValueError("no API key\nconfigured")

    monkeypatch.setattr(WandBTracker, "start", refuses)
    write_params(tracking__also=["wandb"])
    assert main(["train"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "tracking" in line]
    assert "tracking.also: wandb: no API key configured; log in, or set" in said
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert main(["train"]) == 2
    assert "tracking.also: wandb is not installed; pip install" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["log", "finish"])
def test_a_tracker_that_fails_does_not_end_the_run(when: str, project: Path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    pytest.importorskip("trackio")
    from accelerate.tracking import TensorBoardTracker, TrackioTracker

    def fails(self, *values, **more):
        raise OSError("No space left on device")

    monkeypatch.setattr(TensorBoardTracker, when, fails)
    sent: list[int] = []
    monkeypatch.setattr(TrackioTracker, "start", lambda self: None)
    monkeypatch.setattr(TrackioTracker, "log", lambda self, row, step, **more: sent.append(step))
    monkeypatch.setattr(TrackioTracker, "finish", lambda self: None)
    write_params(tracking__also=["tensorboard", "trackio"], tracking__experiment="/Users/me")
    assert main(["train"]) == 0
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1 and sent == [1, 2, 3, 4]
    assert Path("runs/sudoku/d_opsd/0/train.json").is_file()
