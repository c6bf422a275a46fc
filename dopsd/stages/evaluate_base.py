"""`dopsd evaluate_base --task sudoku`: the base model on the selection split, before any training."""

from __future__ import annotations

from dopsd.config import Params
from dopsd.evaluations import Evaluator
from dopsd.layout import RUNS
from dopsd.progress import write_json


def run(params: Params, task_name: str) -> None:
    reports = Evaluator(params, task_name, params.select.split).reports("evaluate_base", [None])
    write_json(RUNS / task_name / "base.json", {name: found[0] for name, found in reports.items()})
