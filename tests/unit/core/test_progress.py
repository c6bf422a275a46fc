"""Progress: plain lines off a terminal, a bar on one, and the file that others read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dopsd.core import progress
from dopsd.core.files import write_json
from dopsd.core.progress import Progress


pytestmark = pytest.mark.usefixtures("here")


def test_plain_lines_have_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_EVERY", -1.0)
    with Progress("stage", 4, "thing", "work/x") as bar:
        bar.resume_at(1)
        bar.step(0, note="32 more answers sampled")
        bar.step(2, note="loss 1.0")
        assert json.loads(Path("work/stage.json").read_text())["done"] == 3
        bar.step()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "stage: 1/4 things  32 more answers sampled"  # no rate before a unit
    assert lines[1].startswith("stage: 3/4 things, ") and lines[1].endswith("/s  loss 1.0")
    assert lines[2].endswith("/s, 0:00 left")  # the first rate includes the start-up
    state = json.loads(Path("work/stage.json").read_text())
    assert (state["done"], state["total"], state["scratch"]) == (4, 4, "work/x")


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("stage", 2, "thing") as bar:
        bar.step()
        bar.step()
        assert bar.bar is not None and bar.bar.finished
    assert "stage" in capsys.readouterr().err


def test_other_ranks_are_silent(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with Progress("stage", 1, "thing") as bar:
        bar.step()
    assert capsys.readouterr().err == "" and not Path("work").exists()


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"x": 1})
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}


def test_few_units_a_second_are_shown_as_seconds_each(here, capsys):
    with Progress("train", 2, "update") as progress:
        progress.started -= 100
        progress.logged -= 100
        progress.step(1)
    assert "1/2 updates, 100 s each" in capsys.readouterr().err
