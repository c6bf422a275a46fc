"""Progress: plain lines off a terminal, a bar on one, the file that others read, and stalls."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from dopsd.core import progress as module
from dopsd.core.progress import Progress, stalled_after
from dopsd.pipeline.run.view import stage_progress

pytestmark = pytest.mark.usefixtures("here")


def test_plain_lines_have_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(module, "PLAIN_EVERY", -1.0)
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


def test_few_units_a_second_are_shown_as_seconds_each(capsys):
    with Progress("train", 2, "update") as bar:
        bar.started -= 100
        bar.logged -= 100
        bar.step(1)
    assert "1/2 updates, 100 s each" in capsys.readouterr().err


def test_ten_times_the_median_but_not_before_a_minute_nor_twice_the_longest_step():
    assert stalled_after([70.0] * 5) == 700.0
    assert stalled_after([0.1] * 50) == 60.0
    assert stalled_after([2.0] * 15 + [300.0]) == 600.0  # a collect, then many updates
    assert stalled_after([70.0] * 4) == stalled_after([]) == 3600.0  # it may still load


@pytest.fixture
def progress() -> Progress:
    return Progress("train", 20, "update")


def look(age: float) -> tuple[bool, str]:
    """What the view says of a file that was written so many seconds ago."""
    written = time.time() - age
    os.utime("work/train.json", (written, written))
    found = stage_progress("train", 0.0)
    assert found
    return found.is_stalled, found.text


def test_the_view_flags_a_stall_and_the_next_update_ends_it(progress: Progress):
    for _ in range(6):
        progress.moved = time.monotonic() - 7.0
        progress.step()
    assert look(65)[0] is False
    is_stalled, text = look(724)
    assert is_stalled and text.startswith("6 of 20, no update for 12:04, usual are 7 s: look")
    progress.step()
    assert look(1) == (False, json_text())


def json_text() -> str:
    state = json.loads(Path("work/train.json").read_text())
    left = int(13 / state["rate"])
    return f"7 of 20, {state['rate']:.2f}/s, {left // 60}:{left % 60:02d} left"


def test_a_resumed_run_and_a_finished_one_are_not_stalled(progress: Progress):
    progress.resume_at(12)
    assert look(3000)[0] is False  # it loads, and no step of this process is known
    assert look(3700)[0] is True
    for _ in range(8):
        progress.step()
    assert look(9999)[0] is False


def test_a_file_of_an_earlier_release_says_nothing_of_stalls(progress: Progress):
    progress.step()
    state = json.loads(Path("work/train.json").read_text())
    del state["stalled_after"], state["usual"]
    Path("work/train.json").write_text(json.dumps(state))
    assert look(99999)[0] is False
