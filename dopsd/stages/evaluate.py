"""`dopsd evaluate --task sudoku --method d_opsd --seed 0`: every checkpoint of a run on the selection split.

Only the protocol that selects is run here; `dopsd test` reports all of them. With `--update 25` that checkpoint alone, into
the cache of evaluations, also while training goes on.
"""

from __future__ import annotations

from typing import Any

from dopsd.config import Params, Select
from dopsd.errors import DopsdError
from dopsd.evaluations import Evaluator
from dopsd.layout import cell_folder, scratch_folder, write_table
from dopsd.progress import is_main_rank, write_json

COLUMNS = ("protocol", "update", "accuracy", "low", "high", "whole", "n")


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    cell = cell_folder(task_name, method_name, seed)
    adapters = sorted((cell / "train").glob("step-*"))
    if not adapters:
        raise DopsdError(f"{cell / 'train'}: no checkpoints; run `dopsd train` for this task, method and seed first")
    name = params.select.protocol
    evaluator = Evaluator(params, task_name, params.select.split)
    (reports,) = evaluator.reports("evaluate", [None, *adapters], params.evaluate.protocols[name])
    if not is_main_rank():
        return
    updates = [0, *(int(folder.name[5:]) for folder in adapters)]
    rows = [_row(name, u, r) for u, r in zip(updates, reports, strict=True)]
    write_table(cell / "curve.csv", rows)
    write_json(cell / "evaluate.json", _summary(rows, params.select))


def one(params: Params, task_name: str, method_name: str, seed: int, update: int) -> None:
    """One checkpoint, of a run that has ended or is still going on; the stage then finds its evaluation in the cache."""
    name = f"step-{update:06d}"
    ended, going = cell_folder(task_name, method_name, seed) / "train", scratch_folder(params, task_name, method_name, seed)
    folder = next((folder / name for folder in (going, ended) if (folder / name).is_dir()), None)
    if folder is None:
        raise DopsdError(f"--update {update}: no {name} in {going} or {ended}; `dopsd train` makes checkpoints")
    protocol = params.evaluate.protocols[params.select.protocol]
    Evaluator(params, task_name, params.select.split).reports("evaluate", [folder], protocol)


def _row(protocol: str, update: int, report: dict[str, Any]) -> dict[str, Any]:
    low, high = report["interval"]
    return dict(zip(COLUMNS, (protocol, update, report["accuracy"], low, high, report["whole"], report["n"]), strict=True))


def _summary(rows: list[dict[str, Any]], select: Select) -> dict[str, Any]:
    """Base, best and last accuracy."""
    best = max(rows[1:], key=lambda row: row["accuracy"])
    accuracies = {"base": rows[0]["accuracy"], "best": best["accuracy"], "last": rows[-1]["accuracy"]}
    return accuracies | {"best_update": best["update"], "split": select.split, "protocol": select.protocol, "n": rows[0]["n"]}
