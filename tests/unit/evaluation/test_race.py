"""Races of checkpoints: who is kept, by hand; a run with one, whose rounds share answers."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import write_params

from dopsd.analysis.tables import mean_curve
from dopsd.cli.main import main
from dopsd.core.files import read_lines
from dopsd.core.tables import read_table
from dopsd.evaluation.config import RaceConfig
from dopsd.evaluation.race import answers, best, rounds

RUN = Path("runs/sudoku/d_opsd/0")


def report(*scores: int) -> dict:
    return {
        "accuracy": sum(scores) / len(scores),
        "per_problem": {str(i): score for i, score in enumerate(scores)},
    }


def test_each_round_has_twice_the_problems_and_half_of_the_checkpoints():
    settings = RaceConfig(protocol="fast", first=32, leaders=2)
    assert rounds(20, 256, settings) == [(32, 20), (64, 10), (128, 5), (256, 3)]
    assert rounds(5, 40, settings) == [(32, 5), (40, 3)]
    assert rounds(2, 256, settings) == []  # all are scored exactly
    assert answers(20, 256, settings) == 20 * 32 + 10 * 32 + 5 * 64 + 3 * 128


def test_the_best_half_is_kept_without_those_that_are_surely_behind():
    a, b, c, d = (Path(name) for name in "abcd")
    found = {
        a: report(*[0, 1] * 20),  # as good as d, and as sure: other problems are right
        b: report(*[0] * 40),
        c: report(*[1, 0] * 10, *[0, 1] * 9, 0, 0),
        d: report(*[1, 0] * 20),
    }
    assert best([a, b, c, d], found, 2, 200) == [a, d]
    assert best([a, b, c, d], found, 1, 200) == [a]  # of equals the earlier
    assert best([a, b, c, d], found, 4, 200) == [a, c, d]


def test_a_raced_run_scores_its_leaders_exactly_and_samples_no_answer_twice(trained, capsys):
    greedy = {"gen_length": 40, "block_length": 8, "steps": 20, "batch_size": 64}
    protocols = {"greedy": greedy, "fast": greedy | {"threshold": 0.9}}
    race = {"protocol": "fast", "first": 4, "leaders": 1}
    write_params(evaluate__protocols=protocols, select__race=race)
    words = "--task", "sudoku", "--method", "d_opsd", "--seed", "0"
    assert main(["evaluate", *words, "--update", "2"]) == 0  # as a flow while training runs
    for stage in ("evaluate", "select", "test"):
        assert main([stage, *words]) == 0
    rows = read_table(RUN / "curve.csv")
    chosen = json.loads((RUN / "evaluate.json").read_text())
    raced = {row["update"]: row["n"] for row in chosen["race"]}
    exact, problems = {row["update"]: row["n"] for row in rows}, rows[0]["n"]
    assert {row["protocol"] for row in rows} == {"greedy"}
    assert {*raced} == {2, 4} and 4 <= min(raced.values()) <= max(raced.values()) <= problems
    assert {0, 4} <= {*exact} <= {0, 2, 4} and {*exact.values()} == {problems}
    assert chosen["protocol"] == "greedy" and chosen["best_update"] in exact
    assert json.loads((RUN / "best" / "select.json").read_text())["raced"] == 2
    assert [*json.loads((RUN / "test.json").read_text())] == ["greedy"]  # the race is not tested
    adapter = str(RUN / "train" / "step-000002")
    whole = "--adapter", adapter, "--protocol", "fast", "--split", "validation"
    assert main(["evaluate", "--task", "sudoku", *whole]) == 0
    for path in Path("work/eval").glob("*/*.jsonl"):
        names = [line["attempts"][0]["problem_id"] for line in read_lines(path)]
        assert len(names) == len({*names}) and len(names) in {4, problems}
    before = (RUN / "curve.csv").read_bytes()
    assert main(["evaluate", *words]) == 0
    assert (RUN / "curve.csv").read_bytes() == before


def test_runs_with_races_have_no_mean_curve():
    """Each seed has exact scores of other checkpoints."""

    def run(is_raced: bool, **accuracies: float) -> Mock:
        points = [(int(name[1:]), value) for name, value in accuracies.items()]
        costs = {update: {"updates": float(update)} for update, _ in points}
        return Mock(is_raced=is_raced, points=lambda: points, costs=lambda: costs)

    a, b = run(True, u0=0.2, u4=0.5, u8=0.4), run(True, u0=0.2, u6=0.6, u8=0.3)
    assert mean_curve([a, b]) == mean_curve([a, run(False, u0=0.2)]) == []
    assert [accuracy for accuracy, _ in mean_curve([a])] == [0.2, 0.5, 0.4]


@pytest.mark.parametrize(
    ("race", "said"),
    [
        ({"protocol": "quick"}, "select.race.protocol 'quick' is not one of evaluate.protocols"),
        ({"protocol": "odd"}, "evaluate.protocols.odd.mask_padding must be true"),
        ({"protocol": "greedy"}, "select.race.protocol 'greedy' is select.protocol"),
        ({"first": 8}, "select.race.protocol"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused(project, refusal, race, said):
    write_params(evaluate__protocols__odd={"mask_padding": False}, select__race=race)
    assert said in refusal("check")
