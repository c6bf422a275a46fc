"""Accuracy against steps: the protocols of its points, and the area under them, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import write_params
from toys import rewrite

from dopsd.cli.main import main
from dopsd.evaluation import evaluator
from dopsd.evaluation.speed import area, areas, curve_protocols
from dopsd.models.llm_policy import load_policy
from dopsd.pipeline.stages.test import _say_falls
from dopsd.rollout.config import EvalProtocol

GREEDY = EvalProtocol(gen_length=40, block_length=8, steps=20)


def test_points_are_faster_copies_of_the_protocol_and_cheap_ones_come_first():
    found = curve_protocols("greedy", GREEDY, [0.9, 2, 0.8, 4])
    assert [*found] == [
        *("greedy-steps5", "greedy-steps10", "greedy-threshold0.8", "greedy-threshold0.9"),
    ]
    assert found["greedy-steps5"] == GREEDY.model_copy(update={"steps": 5})
    assert found["greedy-threshold0.8"] == GREEDY.model_copy(update={"threshold": 0.8})


def test_the_area_is_the_mean_of_accuracy_over_steps():
    assert area([(20, 0.6), (10, 0.5)], 20) == pytest.approx((10 * 0.25 + 10 * 0.55) / 20)
    assert area([(10, 0.5)], 20) == pytest.approx((10 * 0.25 + 10 * 0.5) / 20)  # it ends early


def test_areas_pair_problems_at_the_steps_of_each_side():
    def report(steps: float, *scores: float) -> dict:
        rows = {str(i): score for i, score in enumerate(scores)}
        accuracy = sum(scores) / len(scores)
        protocol = {"steps": 20}
        return {"steps": steps, "accuracy": accuracy, "per_problem": rows, "protocol": protocol}

    tested = {
        "greedy": {"base": report(20, 1, 0), "best": report(20, 1, 1)},
        "greedy-steps10": {"base": report(10, 0, 0), "best": report(8, 1, 0)},
        "greedy-threshold0.9": {"base": report(9, 1, 1), "best": report(9, 1, 1)},
    }
    found = areas(tested, "greedy", 100)
    assert found["base"] == pytest.approx((0 + 10 * 0.25) / 20)
    assert found["best"] == pytest.approx((8 * 0.25 + 12 * 0.75) / 20)
    assert found["difference"] == pytest.approx(found["best"] - found["base"])
    low, high = found["interval"]
    assert low <= found["difference"] <= high
    assert areas({"greedy": tested["greedy"]}, "greedy", 100) is None


@pytest.mark.full
def test_the_test_scores_the_points_and_the_report_draws_them(finished, capsys):
    write_params(evaluate__curve=[2, 0.9])
    assert main(["test", "--point", "greedy-steps10"]) == 0
    assert "test: greedy-steps10: base " in capsys.readouterr().err
    assert main(["test", "--point", "greedy-steps7"]) == 2
    assert main(["test"]) == main(["report"]) == 0
    tested = json.loads(Path("runs/sudoku/d_opsd/0/test/paired.json").read_text())
    assert [*tested["protocols"]] == ["greedy", "greedy-steps10", "greedy-threshold0.9"]
    assert tested["protocols"]["greedy-steps10"]["base"]["steps"] <= 10
    assert 0 < tested["area"]["base"] < 1
    assert Path("reports/sudoku/d_opsd/0/speed.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["summary"]) == 0
    page = Path("reports/sudoku-d_opsd-0.html").read_text()
    assert "Area under accuracy against steps" in page and "greedy-threshold0.9" in page


@pytest.mark.full
def test_tasks_that_are_not_trained_are_watched(finished, capsys, monkeypatch):
    few = {"train": 64, "validation": 8, "test": 8}
    write_params(evaluate__watch=["sudoku", "chains"], data__chains=few)
    monkeypatch.setattr(evaluator, "load_policy", Mock(wraps=load_policy))
    assert main(["test"]) == main(["report"]) == 0  # whose problems no stage had made yet
    assert evaluator.load_policy.call_count <= 1  # one model in memory, of the trained task
    tested = json.loads(Path("runs/sudoku/d_opsd/0/test/paired.json").read_text())
    assert [*tested["watched"]] == ["chains"] and tested["watched"]["chains"]["base"]["n"] == 8
    capsys.readouterr()
    fallen = tested["watched"]["chains"] | {"paired": {"difference": -0.5, "interval": [-1, -0.1]}}
    _say_falls({"chains": fallen})
    assert "chains, which is not trained, falls: -50.0 [-100.0, -10.0]" in capsys.readouterr().err
    rewrite(Path("runs/sudoku/d_opsd/0/test/paired.json"), watched={"chains": fallen})
    assert main(["summary"]) == 0
    assert "not trained: chains: " in capsys.readouterr().out
    page = Path("reports/sudoku-d_opsd-0.html").read_text()
    assert "Not trained, and watched: chains" in page and "<strong>It falls.</strong>" in page
    write_params(evaluate__watch=["poetry"])
    assert main(["check"]) == 2 and "evaluate.watch: poetry" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([8], "evaluate.curve: 8 does not divide 20 steps"),
        ([2], "evaluate.curve: 2 does not divide 20 steps: those of a threshold"),
        ([10], "evaluate.curve: 10: steps 2 must be a multiple of the 5 blocks"),
        ([1.5], "expected a whole number from 2 on, or a threshold below 1"),
        ([2, 2], "curve"),
    ],
)
def test_points_that_do_not_fit_are_refused(project, curve: list, expected: str, capsys):
    whose = {"evaluate__protocols__greedy__threshold": 0.9} if "of a threshold" in expected else {}
    write_params(evaluate__curve=curve, **whose)
    assert main(["check"]) == 2
    assert expected in capsys.readouterr().err
