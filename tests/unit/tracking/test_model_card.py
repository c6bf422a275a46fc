"""The card of a registered checkpoint: the result in words, how to use it, and its limits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.tracking.log_uploader import identity
from dopsd.tracking.model_card import Origin, card, description

PAIRED = Path("runs/sudoku/d_opsd/0/test/paired.json")


def card_of(**paired: object) -> str:
    """The card of the finished run, with another paired difference on test."""
    tested = json.loads(PAIRED.read_text())
    tested["protocols"]["greedy"]["paired"] |= paired
    PAIRED.write_text(json.dumps(tested))
    params = load_params()
    origin = Origin(
        {"train": "11ff", "validation": "22ff", "test": "33ff"}, "c0ffee", "models:/m-1"
    )
    return card(params.run("sudoku", "d_opsd", 0), params.evaluate, origin)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ([0.01, 0.2], "better than the base on such problems"),
        ([-0.2, -0.01], "worse than the base on such problems"),
        ([-0.01, 0.2], "these problems show no difference to the base"),
    ],
)
def test_the_interval_decides_what_the_card_says(finished, interval, verdict):
    text = card_of(difference=0.1234, interval=interval)
    assert f"differs by +12.3 percentage points, between {100 * interval[0]:+.1f}" in text
    assert f"{verdict}." in text


def test_a_card_has_all_parts(finished):
    text = card_of()
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Result", "How to use it", "Data", "Training", "Limits", "All settings"]
    assert "accuracy on 12 test problems**" in text
    assert "mlflow artifacts download -u models:/m-1 -d adapter" in text
    # the files of the toy project have so many problems
    rows = len(Path("data/sudoku/validation.jsonl").read_text().splitlines())
    assert f"* validation: {rows} problems, for validation and selection; DVC md5 `22ff`" in text
    assert "None" not in text and "{" not in text.partition("## All settings")[0]


def test_the_description_of_a_registered_model_names_the_champion():
    text = description("dopsd-sudoku", "sudoku", "base/sudoku")
    assert "trained on the task `sudoku` (4x4 Sudoku: fill in" in text
    assert "models:/dopsd-sudoku@champion" in text


def test_a_run_that_is_another_method_by_its_settings_says_so(finished):
    shutil.copytree("runs/sudoku/d_opsd", "runs/sudoku/espo")
    write_params(method__espo__objective="squared", method__espo__clip_range=4e-4)
    params = load_params()
    run = params.run("sudoku", "espo", 0)
    text = card(run, params.evaluate, Origin({}, None, "models:/m-1"))
    assert "# sudoku, espo (GDSD), seed 0" in text and "by `espo (GDSD)` (GDSD: the change" in text
    assert "* method: `espo (GDSD)`, GDSD: the change of" in text
    tags = identity(run, params.tracking).tags
    assert tags["method"] == "espo" and tags["variant"] == "GDSD"
    assert "variant" not in identity(params.run("sudoku", "rft", 0), params.tracking).tags
