"""`python benchmarks/claim.py [--method d_opsd] [--baseline diffu_grpo]`: how early a method has a
baseline's best.

Run it in a folder whose runs of both have ended (`dvc repro`). The checkpoint is found on the
selection split: the first at which the method's mean curve has the best mean that the baseline's
curve ever has. It is then scored on test, each seed's, and paired by seed and problem with the
checkpoints that were chosen of the baseline. docs/experiments.md says what was fixed beforehand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dopsd.analysis.results import COSTS, Finished, paired_over_seeds
from dopsd.analysis.tables import gap, gaps_between, mean_curve, percent
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.evaluation.evaluator import Evaluator
from dopsd.pipeline.compare import check, is_current
from dopsd.pipeline.comparison import reached

SHARE = 0.25  # of the update at which the baseline has its best


def measure(task: str, method: str, baseline: str, seeds: list[int]) -> dict[str, Any]:
    params = load_params(Path("params.yaml"))
    ours, theirs = ([Finished(task, name, seed) for seed in seeds] for name in (method, baseline))
    check([*ours, *theirs])
    others = [str(run) for run in [*ours, *theirs] if not is_current(params, run)]
    if others:
        raise DopsdError(
            f"claim: {', '.join(others)}: not of params.yaml's settings and this code; run `dvc"
            " repro`"
        )
    curve = mean_curve(theirs)[1:]
    best, at_best = max(curve, key=lambda point: point[0])
    found: dict[str, Any] = {
        "best": best,
        "baseline_cost": at_best,
        "still_rising": at_best == curve[-1][1],
        "cost": None,
    }
    found["cost"] = next(
        cost for _, name, _, _, cost in reached([*ours, *theirs], baseline) if name == method
    )
    if found["cost"] is None:
        return found | {"seen": False}
    adapters = [run.folder / "train" / f"step-{int(found['cost']['updates']):06d}" for run in ours]
    evaluator = Evaluator(params.evaluation(task, method), "test")
    (reports,) = evaluator.reports(
        "claim", [*adapters], params.evaluate.protocols[params.select.protocol]
    )
    chosen = [run.tested["best"] for run in theirs]
    gaps = [gaps_between(report, other) for report, other in zip(reports, chosen, strict=True)]
    difference, interval = paired_over_seeds(gaps, params.evaluate.bootstrap)
    found |= {"difference": difference, "interval": interval}
    found |= {
        "method": [report["accuracy"] for report in reports],
        "chosen": [report["accuracy"] for report in chosen],
    }
    return found | {
        "seen": found["cost"]["updates"] <= SHARE * at_best["updates"] and interval[1] >= 0
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sudoku")
    parser.add_argument("--method", default="d_opsd")
    parser.add_argument("--baseline", default="diffu_grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    a = parser.parse_args()
    found = measure(a.task, a.method, a.baseline, a.seeds)
    rising = ", its last checkpoint: it may have gone on rising" if found["still_rising"] else ""
    print(
        f"{a.baseline}: best mean {percent(found['best'])} on the selection split, at"
        f" {_told(found['baseline_cost'])}{rising}"
    )
    if found["cost"] is None:
        print(f"{a.method}: never has it")
    else:
        sides = ", ".join(
            f"{percent(one)} against {percent(other)}"
            for one, other in zip(found["method"], found["chosen"], strict=True)
        )
        print(f"{a.method}: has it at {_told(found['cost'])}; on test, seed by seed: {sides}")
        print(
            f"difference on test {gap(found['difference'], found['interval'])}; seen:"
            f" {found['seen']}"
        )
    json.dump(found, sys.stdout)
    print()


def _told(cost: dict[str, float]) -> str:
    return ", ".join(f"{cost[name]:.0f} {name}" for name in COSTS if name in cost)


if __name__ == "__main__":
    main()
