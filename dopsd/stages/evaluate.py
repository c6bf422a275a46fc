"""`dopsd evaluate --task sudoku --method d_opsd --seed 0`: every checkpoint of a run on the selection split."""

from __future__ import annotations

from typing import Any

from dopsd.config import Params, Select
from dopsd.errors import DopsdError
from dopsd.evaluations import Evaluator
from dopsd.layout import cell_folder, write_table
from dopsd.progress import write_json

COLUMNS = ("protocol", "update", "accuracy", "low", "high", "whole", "n")


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    cell = cell_folder(task_name, method_name, seed)
    adapters = sorted((cell / "train").glob("step-*"))
    if not adapters:
        raise DopsdError(f"{cell / 'train'}: no checkpoints; run `dopsd train` for this task, method and seed first")
    reports = Evaluator(params, task_name, params.select.split).reports("evaluate", [None, *adapters])
    updates = [0, *(int(folder.name[5:]) for folder in adapters)]
    rows = [_row(name, u, r) for name, found in reports.items() for u, r in zip(updates, found, strict=True)]
    write_table(cell / "curve.csv", rows)
    write_json(cell / "evaluate.json", _summary(rows, params.select))


def _row(protocol: str, update: int, report: dict[str, Any]) -> dict[str, Any]:
    low, high = report["interval"]
    return dict(zip(COLUMNS, (protocol, update, report["accuracy"], low, high, report["whole"], report["n"]), strict=True))


def _summary(rows: list[dict[str, Any]], select: Select) -> dict[str, Any]:
    """Base, best and last accuracy under the protocol that selects."""
    first = [row for row in rows if row["protocol"] == select.protocol]
    best = max(first[1:], key=lambda row: row["accuracy"])
    accuracies = {"base": first[0]["accuracy"], "best": best["accuracy"], "last": first[-1]["accuracy"]}
    return accuracies | {"best_update": best["update"], "split": select.split, "protocol": select.protocol, "n": first[0]["n"]}
