"""`dopsd evaluate --task sudoku --method d_opsd --seed 0`: score every checkpoint of a run.

Checkpoints are scored on the selection split, with the selecting protocol only; with `select.race`
the leaders of a race and the last checkpoint are. `dopsd test` reports all protocols. The curve
begins with what training began with: the base, or the checkpoint that the run started from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.files import read_json, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import run_folder
from dopsd.core.progress import is_main_rank, log
from dopsd.core.tables import write_table
from dopsd.evaluation.curve import start_of_curve
from dopsd.evaluation.evaluator import Evaluator
from dopsd.evaluation.race import race
from dopsd.models.adapter_files import identity, run_checkpoints
from dopsd.models.backends import distinct

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.evaluation.config import SelectConfig

RECIPE = 2  # the curve of a run that started from a checkpoint begins there
COLUMNS = ("protocol", "update", "accuracy", "low", "high", "whole", "n")


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    """Score base, start and checkpoints; write curve.csv and evaluate.json."""
    folder = run_folder(task_name, method_name, seed)
    adapters = run_checkpoints(folder / "train")
    if not adapters:
        raise Code.STAGE_MISSING.error(
            f"{folder / 'train'}: no checkpoints; first run `dopsd train --task {task_name}"
            f" --method {method_name} --seed {seed}`"
        )
    name, settings = params.select.protocol, params.evaluation(task_name, method_name)
    evaluator = Evaluator(settings, params.select.split)
    raced: list[dict[str, Any]] = []
    if params.select.race:
        adapters, raced = _race(params, evaluator, adapters)
    start = _start(folder)
    starts = [start] if start else []
    checkpoints = [None, *starts, *adapters]
    (reports,) = evaluator.reports("evaluate", checkpoints, params.evaluate.protocols[name])
    if not is_main_rank():
        return
    updates = [0] * (1 + len(starts)) + [_update(folder) for folder in adapters]
    base, *rows = [_row(name, u, r) for u, r in zip(updates, reports, strict=True)]
    write_table(folder / "curve.csv", rows if start_of_curve(folder) else [base, *rows])
    if start_of_curve(folder) and not start:
        log(
            f"evaluate: {start_of_curve(folder)} no longer holds the checkpoint that the run"
            " started from, so its curve begins at the first checkpoint"
        )
    records = distinct(record for report in reports for record in report["measured_on"])
    summary = _summary(base, rows, params.select) | {"measured_on": records}
    summary |= {"race": raced} if params.select.race else {}
    write_json(folder / "evaluate.json", summary)


def _race(
    params: Params, evaluator: Evaluator, adapters: list[Path]
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Return the leaders and the last checkpoint, and a row for each that was in the race."""
    settings = params.select.race
    assert settings is not None
    taking_turns = [evaluator]

    def of_first(problems: int) -> Evaluator:
        found = Evaluator(evaluator.settings, evaluator.split, first=problems)
        found.take_model(taking_turns[-1])
        taking_turns.append(found)
        return found

    protocol = params.evaluate.protocols[settings.protocol]
    leaders, last = race(of_first, adapters, protocol, settings, len(evaluator.problems))
    evaluator.take_model(taking_turns[-1])
    rows = [_row(settings.protocol, _update(a), last[a]) for a in adapters if a in last]
    return [a for a in adapters if a in leaders or a == adapters[-1]], rows


def _update(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _start(folder: Path) -> Path | None:
    """Return the checkpoint that a run started from; None: the base, or other weights are there."""
    if not start_of_curve(folder):
        return None
    made = read_json(folder / "train.json", "dopsd train")
    start = Path(made["started_from"])
    is_there = identity(start).is_file() and sha256(identity(start)) == made["start"]
    return start if is_there else None


def _row(protocol: str, update: int, report: dict[str, Any]) -> dict[str, Any]:
    low, high = report["interval"]
    return dict(
        zip(
            COLUMNS,
            (protocol, update, report["accuracy"], low, high, report["whole"], report["n"]),
            strict=True,
        )
    )


def _summary(
    base: dict[str, Any], rows: list[dict[str, Any]], select: SelectConfig
) -> dict[str, Any]:
    """Return accuracies of base, start, best and last checkpoint, and how they were measured."""
    best = max((row for row in rows if row["update"]), key=lambda row: row["accuracy"])
    return {
        "base": base["accuracy"],
        **({} if rows[0]["update"] else {"start": rows[0]["accuracy"]}),
        "best": best["accuracy"],
        "last": rows[-1]["accuracy"],
        "best_update": best["update"],
        "split": select.split,
        "protocol": select.protocol,
        "n": base["n"],
    }
