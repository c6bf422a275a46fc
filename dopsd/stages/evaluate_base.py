"""`dopsd evaluate_base --task sudoku`: the base model on the selection split, before any training."""

from __future__ import annotations

from typing import Any

from dopsd.config import Params
from dopsd.evaluations import Evaluator
from dopsd.layout import RUNS
from dopsd.progress import is_main_rank, write_json


def run(params: Params, task_name: str) -> None:
    name = params.select.protocol
    evaluator = Evaluator(params, task_name, params.select.split)
    ((found,),) = evaluator.reports("evaluate_base", [None], params.evaluate.protocols[name])
    if is_main_rank():
        write_json(RUNS / task_name / "base.json", {name: _figures(found)})


def _figures(report: dict[str, Any]) -> dict[str, float]:
    """What `dvc metrics show` can put on a line: no problem's own score."""
    low, high = report["interval"]
    return (
        {name: report[name] for name in ("accuracy", "whole", "n")}
        | report["figures"]
        | {"low": low, "high": high}
    )
