"""The collapse watch: its rule by hand, and a run that it ends, which stays ended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from conftest import write_params
from hypothesis import given
from hypothesis import strategies as st

from dopsd.cli.main import main
from dopsd.core.tables import read_table
from dopsd.rollout.collector import RolloutCollector
from dopsd.training.collapse import CollapseDetector
from dopsd.training.trainer import Trainer


def test_a_fall_below_the_best_rolling_mean_is_flagged_once():
    detector = CollapseDetector(window=2, drop=0.5, problems=1000, errors=4.0)
    scores = (0.2, 0.6, 0.8, 0.6, 0.4, 0.2, 0.0, 0.9)
    told = [detector.see(score, score) for score in scores]  # right or wrong
    # rolling means 0.4, 0.7, 0.7, 0.5, 0.3: below half of 0.7
    assert told == [False] * 5 + [True] + [False] * 2
    assert detector.means[:5] == pytest.approx([0.4, 0.7, 0.7, 0.5, 0.3]) and detector.is_collapsed


@given(st.lists(st.floats(0, 1), max_size=30))
def test_scores_that_never_fall_never_collapse(scores: list[float]):
    detector = CollapseDetector(window=3, drop=0.1, problems=1, errors=0.1)
    assert not any(detector.see(score, score) for score in sorted(scores))


def flags(draw: Callable, *lengths: int, window: int = 8, problems: int = 4) -> bool:
    """Whether a run is flagged with scores `draw(part)`, in `lengths[part]` collects a part."""
    detector = CollapseDetector(window=window, drop=0.3, problems=problems, errors=4.0)
    for part, length in enumerate(lengths):
        for _ in range(length):
            scores = draw(part)[:problems]
            detector.see(scores.mean(), (scores**2).mean())
    return detector.is_collapsed


@pytest.mark.parametrize(
    "right", [0.77, *(pytest.param(share, marks=pytest.mark.full) for share in (0.33, 0.2))]
)
@pytest.mark.full
def test_chance_alone_is_seldom_taken_for_a_collapse_and_a_real_one_is_seen(right):
    """Four problems a collect: a policy that stays as it is, and one that answers no more."""
    random = numpy.random.default_rng(0)
    same = [flags(lambda part: random.binomial(1, right, 4).astype(float), 125) for _ in range(100)]
    lost = [
        flags(lambda part: random.binomial(1, right * (part == 0), 4).astype(float), 60, 40)
        for _ in range(100)
    ]
    assert sum(same) <= 8
    # of rare successes eight collects of four show little
    assert sum(lost) >= (95 if right > 0.3 else 40)


def test_partial_scores_show_a_fall_to_guessing():
    """First attempts at 0.55 with a standard deviation of 0.2, then random digits: 0.25."""
    random = numpy.random.default_rng(0)

    def scores(mean: float) -> numpy.ndarray:
        return random.normal(mean, 0.2, 16).clip(0, 1)

    def flagged(low: float, *lengths: int) -> bool:
        means = (0.55, low)
        return flags(lambda part: scores(means[part]), *lengths, window=4, problems=16)

    assert sum(flagged(0.55, 25) for _ in range(100)) <= 2
    assert sum(flagged(0.25, 10, 4) for _ in range(100)) >= 98


OFTEN = {"train__collapse_window": 1, "method__d_opsd__updates_per_trajectory": 1}


def totals() -> dict[str, int]:
    return json.loads(Path("runs/sudoku/d_opsd/0/train.json").read_text())


@pytest.mark.parametrize("stops", [True, False])
def test_a_collapsed_run_stops_where_it_is_set_to_and_stays_stopped(
    project, monkeypatch, capsys, stops: bool
):
    write_params(train__stop_on_collapse=stops, train__updates=8, **OFTEN)
    monkeypatch.setattr(
        CollapseDetector, "is_collapsed", property(lambda self: len(self.scores) >= 3)
    )
    for _ in range(2):
        assert main(["train"]) == 0
        rows = read_table(Path("runs/sudoku/d_opsd/0/train.csv"))
        assert rows[-1]["update"] == (3 if stops else 8)
        collapsed = [row["update"] for row in rows if row.get("collapsed")]
        assert collapsed == list(range(3, rows[-1]["update"] + 1))
    assert totals()["updates"] == (3 if stops else 8)
    assert capsys.readouterr().err.count("the run has collapsed") == 1


def test_a_policy_that_stops_answering_is_seen_and_its_run_ends_with_its_checkpoints(
    project, monkeypatch, capsys
):
    """After the second collect nothing is kept any more: no update follows that could have told."""
    settings = {"train__updates": 60, "train__collapse_errors": 0.1, "method__d_opsd__attempts": 1}
    write_params(**settings, train__max_empty_collects=3, **OFTEN)
    scored = RolloutCollector.scored

    def failing(self, tried):
        found = scored(self, tried)
        seen.add(found.problem.id)
        if len(seen) <= 4:  # two collects of two problems
            return replace(found, first_score=replace(found.first_score, score=0.5))
        if len(seen) == 5 and not ended:
            ended.append(os.getpid())
            os.kill(os.getpid(), signal.SIGTERM)  # between two updates that may be hours apart
        return replace(found, is_kept=False, first_score=replace(found.first_score, score=0.0))

    seen: set[str] = set()
    ended: list[int] = []
    monkeypatch.setattr(RolloutCollector, "scored", failing)
    assert main(["train"]) == 143
    (state,) = Path("work").glob("train-*/step-000002/state.json")
    assert json.loads(state.read_text())["counters"]["collects"] == 3
    assert "update 2: the run has collapsed" in capsys.readouterr().err
    assert main(["train"]) == 0
    said = capsys.readouterr().err
    assert "4 collects in a row gave nothing to learn from (train.max_empty_collects)" in said
    assert "the run ends after update 2" in said
    # those that gave nothing cost as well
    assert [totals()[name] for name in ("updates", "collects", "rollouts")] == [2, 6, 12]
    assert main(["train"]) == 0 and "gave nothing" not in capsys.readouterr().err  # it stays ended
    assert main(["evaluate"]) == main(["select"]) == 0


@pytest.mark.parametrize("skips", [True, False])  # False: an update on weight decay alone
def test_a_run_that_never_has_anything_to_learn_from_is_refused(project, capsys, skips: bool):
    hopeless = {"method__d_opsd__keep_threshold": 1.0, "method__d_opsd__attempts": 1}
    hopeless["method__d_opsd__skip_empty"] = skips
    write_params(train__max_empty_collects=1, **hopeless)
    assert main(["train"]) == 2
    assert "2 collects in a row gave nothing to learn from" in capsys.readouterr().err


def test_a_run_stopped_in_its_last_update_before_it_ends_by_collapse_still_makes_that_update(
    project, monkeypatch
):
    monkeypatch.setattr(
        CollapseDetector, "is_collapsed", property(lambda detector: len(detector.scores) >= 2)
    )
    write_params(train__updates=8, train__stop_on_collapse=True)
    step, see = Trainer.accumulate, CollapseDetector.see
    # without the line that tells its means
    monkeypatch.setattr(CollapseDetector, "see", lambda *seen: see(*seen) and False)

    def stopped(self):
        if self.update == 3:  # the first update of the second collect, after which the run is over
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "accumulate", stopped)
        assert main(["train"]) == 143
    assert main(["train"]) == 0
    assert totals()["updates"] == 4
