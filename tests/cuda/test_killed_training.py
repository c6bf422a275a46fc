"""Runs on a card: one, the same again, and one that is killed and continued."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

import pytest
import torch
from card import CPU, distance, note
from small_settings import ROOT

from dopsd.cli.main import main
from dopsd.config import profiles
from dopsd.config.layout import render
from dopsd.config.params_file import with_changes
from dopsd.core.tables import read_table
from dopsd.core.tensor_files import load_tensors

pytestmark = pytest.mark.cuda
SECONDS = {"cuda": 90, "cpu": 500}  # until a run that hangs is given up
TRAINED = Path("runs/sudoku/d_opsd/0/train")
SIZES = ["data.sudoku.train=256", "data.sudoku.validation=16", "data.sudoku.test=16"]
REHEARSED = ["train.prompts_per_collect=2", "method.d_opsd.attempts=2"]


def project(folder: Path, updates: int, every: int, device: torch.device) -> None:
    """A folder with the embedded base and its settings, for a short run."""
    changes = [*SIZES, f"train.updates={updates}", f"train.checkpoint_every={every}"]
    changes += ["tracking.enabled=false", "method.d_opsd.keep_threshold=0.0"]
    raw = profiles.resolve(profiles.EMBEDDED)
    raw = with_changes(raw, changes + REHEARSED * (device == CPU))
    shutil.copytree(ROOT / "base/sudoku", folder / "base/sudoku")
    (folder / "params.yaml").write_text(render(raw))


def start(folder: Path) -> subprocess.Popen:
    words = [sys.executable, "-m", "dopsd", "train", "--task", "sudoku", "--method", "d_opsd"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (folder / "output").open("ab") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        env = os.environ | {"PYTHONPATH": paths}
        return subprocess.Popen(words, cwd=folder, env=env, **streams)


def kill_after_a_checkpoint(run: subprocess.Popen, folder: Path, every: int) -> None:
    while run.poll() is None and not list(folder.glob(f"work/train-*/step-{every:06d}")):
        time.sleep(0.02)
    run.send_signal(SIGKILL)
    assert run.wait() == -SIGKILL, (folder / "output").read_text()[-2000:]


def weights(folder: Path, updates: int) -> torch.Tensor:
    saved = load_tensors(folder / TRAINED / f"step-{updates:06d}" / "adapter_model.safetensors")
    return torch.cat([saved[name].flatten() for name in sorted(saved)])


def test_a_killed_run_continues_as_if_it_had_not_been(device, within, tmp_path, monkeypatch):
    updates, every = (4, 2) if device == CPU else (12, 4)
    first, again, killed = folders = [tmp_path / name for name in ("first", "again", "killed")]
    project(first, updates, every, device)
    monkeypatch.chdir(first)
    assert main(["prepare", "--task", "sudoku"]) == 0
    for folder in (again, killed):
        shutil.copytree(first, folder)
    runs = [start(folder) for folder in folders]
    try:
        kill_after_a_checkpoint(runs[2], killed, every)
        runs[2] = start(killed)
        codes = [run.wait(SECONDS[device.type]) for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    outputs = [(folder / "output").read_text() for folder in folders]
    assert codes == [0, 0, 0], [text[-1000:] for text in outputs]
    assert "continuing after update" in outputs[2]
    tables = [read_table(folder / TRAINED.with_suffix(".csv")) for folder in folders]
    assert [[int(row["update"]) for row in table] for table in tables] == [
        list(range(1, updates + 1))
    ] * 3
    one, other, continued = (weights(folder, updates) for folder in folders)
    repeated = distance(other, one)
    note(repeats_bytes=torch.equal(other, one), continues_bytes=torch.equal(continued, one))
    note(repeated=repeated, continued=distance(continued, one))
    if torch.equal(other, one):  # where equal runs round alike, a continued one does too
        within(0.0, continued=distance(continued, one))
