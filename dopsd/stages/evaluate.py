"""`dopsd evaluate --task sudoku --method d_opsd --seed 0`: every checkpoint of a run on the selection split.

Only the protocol that selects is run here; `dopsd test` reports all of them. With `--update 25 50` those checkpoints
alone, into the cache of evaluations, also while training goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dopsd.config import Params, SelectConfig
from dopsd.errors import DopsdError
from dopsd.evaluations import Evaluator
from dopsd.layout import EVALUATED, run_folder, scratch_folder, write_table
from dopsd.progress import is_main_rank, log, write_json

COLUMNS = ("protocol", "update", "accuracy", "low", "high", "whole", "n")


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    folder, params = run_folder(task_name, method_name, seed), params.of(method_name)
    adapters = sorted((folder / "train").glob("step-*"))
    if not adapters:
        raise DopsdError(
            f"{folder / 'train'}: no checkpoints; run `dopsd train` for this task, method and seed first"
        )
    name = params.select.protocol
    evaluator = Evaluator(params, task_name, params.select.split)
    (reports,) = evaluator.reports("evaluate", [None, *adapters], params.evaluate.protocols[name])
    if not is_main_rank():
        return
    updates = [0, *(int(folder.name[5:]) for folder in adapters)]
    rows = [_row(name, u, r) for u, r in zip(updates, reports, strict=True)]
    write_table(folder / "curve.csv", rows)
    write_json(folder / "evaluate.json", _summary(rows, params.select))


def some(params: Params, task_name: str, method_name: str, seed: int, updates: list[int]) -> None:
    """These checkpoints, of a run that has ended or is still going on; the stage then finds them in the cache."""
    params = params.of(method_name)
    going, ended = (
        scratch_folder(params, task_name, method_name, seed),
        run_folder(task_name, method_name, seed) / "train",
    )
    folders = {update: _checkpoint(update, going, ended) for update in updates}
    evaluator = Evaluator(params, task_name, params.select.split)
    for update, folder in folders.items():
        evaluator.reports("evaluate", [folder], params.evaluate.protocols[params.select.protocol])
        log(f"{EVALUATED}{update}")


def _checkpoint(update: int, *places: Path) -> Path:
    name = f"step-{update:06d}"
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise DopsdError(
        f"--update {update}: no {name} in {' or '.join(map(str, places))}; `dopsd train` makes checkpoints"
    )


def _row(protocol: str, update: int, report: dict[str, Any]) -> dict[str, Any]:
    low, high = report["interval"]
    return dict(
        zip(
            COLUMNS,
            (protocol, update, report["accuracy"], low, high, report["whole"], report["n"]),
            strict=True,
        )
    )


def _summary(rows: list[dict[str, Any]], select: SelectConfig) -> dict[str, Any]:
    """Base, best and last accuracy."""
    best = max(rows[1:], key=lambda row: row["accuracy"])
    accuracies = {
        "base": rows[0]["accuracy"],
        "best": best["accuracy"],
        "last": rows[-1]["accuracy"],
    }
    return accuracies | {
        "best_update": best["update"],
        "split": select.split,
        "protocol": select.protocol,
        "n": rows[0]["n"],
    }
