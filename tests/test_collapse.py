"""The collapse watch: its rule by hand, and a run that it ends, which stays ended."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from conftest import write_params
from hypothesis import given
from hypothesis import strategies as st

from dopsd import collapse
from dopsd.cli import main
from dopsd.collapse import Watch
from dopsd.layout import read_table


def test_a_fall_below_the_best_rolling_mean_is_flagged_once():
    watch = Watch(window=2, drop=0.5, problems=1000, errors=4.0)
    told = [watch.see(score) for score in (0.2, 0.6, 0.8, 0.6, 0.4, 0.2, 0.0, 0.9)]
    # rolling means 0.4, 0.7, 0.7, 0.5, 0.3: below half of 0.7
    assert told == [False] * 5 + [True] + [False] * 2
    assert watch.means[:5] == pytest.approx([0.4, 0.7, 0.7, 0.5, 0.3]) and watch.is_collapsed


@given(st.lists(st.floats(0, 1), max_size=30))
def test_scores_that_never_fall_never_collapse(scores: list[float]):
    watch = Watch(window=3, drop=0.1, problems=1, errors=0.1)
    assert not any(watch.see(score) for score in sorted(scores))


@pytest.mark.parametrize("right", [0.77, 0.33, 0.2])
def test_chance_alone_is_seldom_taken_for_a_collapse_and_a_real_one_is_seen(right):
    """A policy that stays as it is, four problems a collect, 125 collects; then one that answers nothing any more."""
    draw = numpy.random.default_rng(0)
    flagged, seen = 0, 0
    for _ in range(100):
        scores = draw.binomial(4, right, 125) / 4
        watch = Watch(window=8, drop=0.3, problems=4, errors=4.0)
        flagged += any(watch.see(score) for score in scores)
        watch = Watch(window=8, drop=0.3, problems=16, errors=4.0)
        for score in [*draw.binomial(16, right, 20) / 16, *[0.0] * 8]:
            watch.see(score)
        seen += watch.is_collapsed
    assert flagged <= 8 and seen >= 95


@pytest.mark.parametrize("stops", [True, False])
def test_a_collapsed_run_stops_where_it_is_told_to_and_stays_stopped(project, monkeypatch, capsys, stops: bool):
    write_params(
        train__stop_on_collapse=stops,
        train__updates=8,
        train__collapse_window=1,
        method__d_opsd__updates_per_trajectory=1,
    )
    monkeypatch.setattr(collapse.Watch, "is_collapsed", property(lambda self: len(self.scores) >= 3))
    for _ in range(2):
        assert main(["train"]) == 0
        rows = read_table(Path("runs/sudoku/d_opsd/0/train.csv"))
        assert rows[-1]["update"] == (3 if stops else 8)
        assert [row["update"] for row in rows if row.get("collapsed")] == list(range(3, rows[-1]["update"] + 1))
    assert json.loads(Path("runs/sudoku/d_opsd/0/train.json").read_text())["updates"] == (3 if stops else 8)
    assert capsys.readouterr().err.count("the run has collapsed") == 1
    assert main(["evaluate"]) == main(["select"]) == 0
