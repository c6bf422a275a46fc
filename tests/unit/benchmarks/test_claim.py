"""benchmarks/claim.py: the checkpoints of the claim, their pairing, and when it is seen."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from cells import cost, finished
from conftest import ROOT, small_params

from dopsd.config.params import Params
from dopsd.core.tables import write_table

pytestmark = pytest.mark.full

BASELINE = {100: 0.5, 200: 0.6, 300: 0.55, 400: 0.6}  # the best mean is at 200 first


@pytest.fixture
def claim(here, monkeypatch):
    spec = importlib.util.spec_from_file_location("claim", ROOT / "benchmarks" / "claim.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "load_params", lambda _path: Params.model_validate(small_params()))
    monkeypatch.setattr(module, "is_current", lambda _params, _run: True)
    return module


def curve(method: str, seed: int, scores: dict[str, float], points: dict[int, float]) -> None:
    """A finished run with these accuracies on validation, and scores of the chosen one on test."""
    finished(method, seed, scores)
    cell = Path("runs/sudoku") / method / str(seed)
    write_table(cell / "train.csv", [cost(update) for update in points])
    scored = ({0: 0.25} | points).items()
    rows = [{"update": u, "accuracy": a, "protocol": "greedy"} for u, a in scored]
    write_table(cell / "curve.csv", rows)


def scoring(claim, monkeypatch, per_problem: list[dict[str, float]]) -> list[Path]:
    """The test scores of the checkpoints that are asked for; which those are."""
    asked: list[Path] = []

    def reports(_stage: str, adapters: list[Path], _protocol: object):
        asked.extend(adapters)
        return [[{"accuracy": sum(p.values()) / len(p), "per_problem": p} for p in per_problem]]

    monkeypatch.setattr(claim, "Evaluator", lambda *_: SimpleNamespace(reports=reports))
    return asked


@pytest.mark.parametrize(
    ("first", "test", "seen"),
    [
        (50, [0.75, 0.5], True),  # a quarter of 200
        (51, [0.75, 0.5], False),  # later than that
        (50, [0.0, 0.0], False),  # early, and worse on test
    ],
)
def test_the_claim_is_about_the_first_checkpoint_that_has_the_baselines_first_best(
    claim, monkeypatch, first, test, seen
):
    for seed, shift in ((0, -0.1), (1, 0.1)):  # only the mean of the seeds counts
        curve("diffu_grpo", seed, {"a": 0.5, "b": 0.5}, {u: a + shift for u, a in BASELINE.items()})
        points = {25: 0.59 + shift, first: 0.6 + shift, 75: 0.9 + shift}
        curve("d_opsd", seed, {"a": 1.0, "b": 1.0}, points)
    asked = scoring(claim, monkeypatch, [dict.fromkeys("ab", score) for score in test])
    found = claim.measure("sudoku", "d_opsd", "diffu_grpo", [0, 1])
    assert found["best"] == pytest.approx(0.6) and not found["still_rising"]
    assert found["baseline_cost"]["updates"] == 200
    folders = [f"runs/sudoku/d_opsd/{seed}/train/step-{first:06d}" for seed in (0, 1)]
    assert [str(path) for path in asked] == folders
    # chosen checkpoints of the baseline have 0.5
    assert found["difference"] == pytest.approx(sum(test) / 2 - 0.5)
    assert found["seen"] is seen


def test_a_method_that_never_has_it_has_not_shown_it(claim, monkeypatch):
    curve("diffu_grpo", 0, {"a": 0.5}, BASELINE)
    curve("d_opsd", 0, {"a": 1.0}, {25: 0.5})
    assert claim.measure("sudoku", "d_opsd", "diffu_grpo", [0])["seen"] is False
