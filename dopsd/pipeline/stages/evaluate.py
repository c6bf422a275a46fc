"""`dopsd evaluate --task sudoku --method d_opsd --seed 0`: score every checkpoint of a run.

Checkpoints are scored on the selection split, with the selecting protocol only. `dopsd test`
reports all protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.core.paths import run_folder
from dopsd.core.progress import is_main_rank
from dopsd.core.tables import write_table
from dopsd.evaluation.evaluator import Evaluator
from dopsd.models.measured_on import distinct

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.evaluation.config import SelectConfig

COLUMNS = ("protocol", "update", "accuracy", "low", "high", "whole", "n")


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    """Score base and checkpoints, and write curve.csv and evaluate.json to the run's folder.

    Raises:
        DopsdError: if the run has no checkpoints.
    """
    folder = run_folder(task_name, method_name, seed)
    adapters = sorted((folder / "train").glob("step-*"))
    if not adapters:
        raise DopsdError(
            f"{folder / 'train'}: no checkpoints; first run `dopsd train --task {task_name}"
            f" --method {method_name} --seed {seed}`",
            code=Code.STAGE_MISSING,
        )
    name = params.select.protocol
    evaluator = Evaluator(params.evaluation(task_name, method_name), params.select.split)
    (reports,) = evaluator.reports("evaluate", [None, *adapters], params.evaluate.protocols[name])
    if not is_main_rank():
        return
    updates = [0, *(int(folder.name[5:]) for folder in adapters)]
    rows = [_row(name, u, r) for u, r in zip(updates, reports, strict=True)]
    write_table(folder / "curve.csv", rows)
    records = distinct(record for report in reports for record in report["measured_on"])
    summary = _summary(rows, params.select) | {"measured_on": records}
    write_json(folder / "evaluate.json", summary)


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
    """Return the accuracies of base, best and last checkpoint, and how they were measured."""
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
