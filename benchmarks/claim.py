"""Measure how early a method reaches a baseline's best accuracy.

    python benchmarks/claim.py [--method d_opsd] [--baseline diffu_grpo]

Run this in a project whose runs of both methods have finished (`dvc repro`). The checkpoint is
chosen on the selection split: the first one at which the method's mean curve reaches the best mean
of the baseline's curve. That checkpoint of each seed is then scored on test, and paired by seed and
problem with the baseline's selected checkpoints. benchmarks/paper_tables.md lists what was fixed
before the measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dopsd.analysis.results import COSTS, Finished, paired_over_seeds
from dopsd.analysis.tables import gaps_between, mean_curve
from dopsd.config.loading import load_params
from dopsd.core.errors import Code, DopsdError
from dopsd.core.statistics import gap, percent
from dopsd.evaluation.evaluator import Evaluator
from dopsd.pipeline.results.compare import check, is_current
from dopsd.pipeline.results.comparison import reached

SHARE = 0.25  # the claim: at most this share of the updates that the baseline's best took


def measure(task: str, method: str, baseline: str, seeds: list[int]) -> dict[str, Any]:
    """Return costs, test accuracies and paired difference; `seen`: whether the claim holds."""
    params = load_params(Path("params.yaml"))
    ours, theirs = ([Finished(task, name, seed) for seed in seeds] for name in (method, baseline))
    check([*ours, *theirs])
    others = [str(run) for run in [*ours, *theirs] if not is_current(params, run)]
    if others:
        raise DopsdError(
            f"claim: {', '.join(others)}: made with other settings or code; run `dvc repro`",
            code=Code.NOT_COMPARABLE,
        )
    curve = mean_curve(theirs)[1:]
    best, at_best = max(curve, key=lambda point: point[0])
    result: dict[str, Any] = {
        "best": best,
        "baseline_cost": at_best,
        "still_rising": at_best == curve[-1][1],
        "cost": None,
    }
    result["cost"] = next(
        cost for _, name, _, _, cost in reached([*ours, *theirs], baseline) if name == method
    )
    if result["cost"] is None:
        return result | {"seen": False}
    adapters = [run.folder / "train" / f"step-{int(result['cost']['updates']):06d}" for run in ours]
    evaluator = Evaluator(params.evaluation(task, method), "test")
    (reports,) = evaluator.reports(
        "claim", [*adapters], params.evaluate.protocols[params.select.protocol]
    )
    chosen = [run.tested["best"] for run in theirs]
    gaps = [gaps_between(report, other) for report, other in zip(reports, chosen, strict=True)]
    difference, interval = paired_over_seeds(gaps, params.evaluate.bootstrap)
    result |= {"difference": difference, "interval": interval}
    result |= {
        "method": [report["accuracy"] for report in reports],
        "chosen": [report["accuracy"] for report in chosen],
    }
    return result | {
        "seen": result["cost"]["updates"] <= SHARE * at_best["updates"] and interval[1] >= 0
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="sudoku")
    parser.add_argument("--method", default="d_opsd")
    parser.add_argument("--baseline", default="diffu_grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    a = parser.parse_args()
    result = measure(a.task, a.method, a.baseline, a.seeds)
    rising = ", the last checkpoint: the curve may still rise" if result["still_rising"] else ""
    print(
        f"{a.baseline}: best mean {percent(result['best'])} on the selection split, at"
        f" {_format_cost(result['baseline_cost'])}{rising}"
    )
    if result["cost"] is None:
        print(f"{a.method}: never reaches this accuracy")
    else:
        sides = ", ".join(
            f"{percent(one)} against {percent(other)}"
            for one, other in zip(result["method"], result["chosen"], strict=True)
        )
        print(
            f"{a.method}: reaches this accuracy at {_format_cost(result['cost'])}; on test, by"
            f" seed: {sides}"
        )
        print(
            f"difference on test {gap(result['difference'], result['interval'])}; claim holds:"
            f" {result['seen']}"
        )
    json.dump(result, sys.stdout)
    print()


def _format_cost(cost: dict[str, float]) -> str:
    return ", ".join(f"{cost[name]:.0f} {name}" for name in COSTS if name in cost)


if __name__ == "__main__":
    main()
