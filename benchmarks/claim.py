"""`python benchmarks/claim.py [--method d_opsd] [--baseline diffu_grpo]`: how early a method has a baseline's best.

Run it in a folder whose runs of both have ended (`dvc repro`). The checkpoint is found on the selection split: the first at
which the method's mean curve has the best mean that the baseline's curve ever has. It is then scored on test, each seed's,
and paired by seed and problem with the checkpoints that were chosen of the baseline. docs/experiments.md says what was fixed
beforehand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dopsd.evaluations import Evaluator
from dopsd.finished import Finished, paired_over_seeds
from dopsd.params import load_params
from dopsd.tables import gap, mean_curve, percent

SHARE = 0.25  # of the update at which the baseline has its best


def measure(task: str, method: str, baseline: str, seeds: list[int]) -> dict[str, Any]:
    params = load_params(Path("params.yaml"))
    ours, theirs = ([Finished(task, name, seed) for seed in seeds] for name in (method, baseline))
    best, at_best = max(mean_curve(theirs)[1:], key=lambda point: point[0])
    found: dict[str, Any] = {"best": best, "baseline_update": at_best["updates"], "update": None}
    crossing = next((cost["updates"] for accuracy, cost in mean_curve(ours)[1:] if accuracy >= best), None)
    if crossing is None:
        return found
    evaluator = Evaluator(params.of(method), task, "test")
    adapters = [run.folder / "train" / f"step-{int(crossing):06d}" for run in ours]
    protocol = params.evaluate.protocols[params.select.protocol]
    (reports,) = evaluator.reports("claim", [*adapters], protocol)
    gaps = []
    for report, run in zip(reports, theirs, strict=True):
        chosen = run.tested["best"]["per_problem"]
        gaps.append([report["per_problem"][name] - chosen[name] for name in sorted(chosen)])
    difference, interval = paired_over_seeds(gaps, params.evaluate.bootstrap)
    found |= {"update": crossing, "difference": difference, "interval": interval}
    found["method"] = [report["accuracy"] for report in reports]
    found["chosen"] = [run.tested["best"]["accuracy"] for run in theirs]
    return found | {"seen": crossing <= SHARE * at_best["updates"] and interval[1] >= 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sudoku")
    parser.add_argument("--method", default="d_opsd")
    parser.add_argument("--baseline", default="diffu_grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    a = parser.parse_args()
    found = measure(a.task, a.method, a.baseline, a.seeds)
    print(f"{a.baseline}: best mean {percent(found['best'])} on the selection split, at update {found['baseline_update']:.0f}")
    if found["update"] is None:
        print(f"{a.method}: never has it")
    else:
        pairs = zip(found["method"], found["chosen"], strict=True)
        sides = ", ".join(f"{percent(one)} against {percent(other)}" for one, other in pairs)
        print(f"{a.method}: has it at update {found['update']:.0f}; on test, seed by seed: {sides}")
        print(f"difference on test {gap(found['difference'], found['interval'])}; seen: {found['seen']}")
    json.dump(found, sys.stdout)
    print()


if __name__ == "__main__":
    main()
