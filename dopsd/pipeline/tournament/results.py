"""Collect the results of a tournament in one file, from which tables are made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dopsd.config.loading import read_yaml
from dopsd.config.params_file import flat
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.jsonl import append_lines, read_lines
from dopsd.core.paths import REPORTS
from dopsd.models.files import base_digest
from dopsd.pipeline.repeat import as_text
from dopsd.pipeline.tournament.cells import BUDGETS, PARAMS, RUN, SWITCH, Cell
from dopsd.pipeline.tournament.choice import (
    best_rate,
    best_within,
    cells_of,
    opponents,
    ranking,
    tried_rates,
)
from dopsd.pipeline.tournament.limits import warnings_of
from dopsd.pipeline.tournament.standings import answer, pairs, reached, standings
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params
    from dopsd.pipeline.tournament.plan import Plan

VERSION = 1
LOOKS = "tests.jsonl"  # beside the results: when the test split was looked at


def folder_of(plan: Plan) -> Path:
    """Return the folder of a tournament's results."""
    return REPORTS / plan.name


def gather(plan: Plan, path: Path, params: Params) -> dict[str, Any]:
    """Return all results of a tournament that are there by now.

    Args:
        plan: the rules.
        path: the plan's file.
        params: settings of this folder.

    Raises:
        DopsdError: if no run has finished.
    """
    made = [cell for cell in cells_of(plan, RUN) if cell.result]
    switches = [cell for cell in cells_of(plan, SWITCH) if cell.result]
    if not made:
        raise DopsdError(
            f"{path}: no finished runs; run `dopsd tournament --plan {path}` first",
            code=Code.NO_RESULTS,
        )
    resamples, looks = params.evaluate.bootstrap, list(read_lines(folder_of(plan) / LOOKS))
    differences = pairs(made, resamples)
    named = {task: opponents(plan, task, ranking(plan, task, "tokens")) for task in plan.tasks}
    return {
        "version": VERSION,
        "plan": str(path),
        "rules": plan.model_dump(mode="json"),
        "params": sha256(PARAMS),
        "bases": {task: _base(params, made, task) for task in plan.tasks},
        "entries": {entry: _entry(plan, entry) for entry in plan.entries},
        "runs": [_run(cell, path, params) for cell in made],
        "standings": standings(made, resamples),
        "pairs": differences,
        "answer": answer(plan, named, differences),
        "switches": [_switch(cell, made) for cell in switches],
        "warnings": warnings_of(plan, made, looks),
        "looks": looks,
    }


def note_look(plan: Plan, task: str, tested: int) -> None:
    """Note that chosen checkpoints are scored on a test split, and of how many runs."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    append_lines(folder_of(plan) / LOOKS, [{"at": at, "task": task, "tested": tested}])


def write(plan: Plan, path: Path, params: Params) -> dict[str, Any]:
    """Write the results to the tournament's folder, and return them."""
    results = gather(plan, path, params)
    write_json(folder_of(plan) / "results.json", results)
    return results


def _base(params: Params, made: list[Cell], task: str) -> dict[str, Any]:
    model = params.model_of(task)
    base: dict[str, Any] = {"path": model.path, "digest": base_digest(model)}
    base["graded"] = load_task(task, params.data.tasks[task]).graded
    base |= dict.fromkeys(("validation", "validation_n", "test", "test_n"))
    for cell in made:
        if cell.task == task and cell.result:
            first = cell.result["curve"][0]
            base |= {"validation": first["accuracy"], "validation_n": cell.result["n"]}
            if found := cell.tested:
                base |= {"test": found["base"]["accuracy"], "test_n": found["base"]["n"]}
    return base


def _entry(plan: Plan, entry: str) -> dict[str, Any]:
    rates = {}
    for task in plan.tasks:
        tried = tried_rates(plan, task, entry)
        rates[task] = {
            "tried": {f"{rate:g}": accuracy for rate, accuracy in tried.items()},
            "chosen": best_rate(plan, task, entry),
        }
    return {
        "method": plan.method_of(entry),
        "title": plan.title_of(entry),
        "knowledge": plan.entries[entry].knows,
        "knows": {task: plan.knows(entry, task) for task in plan.tasks},
        "settings": {task: plan.settings_of(entry, task) for task in plan.tasks},
        "rates": rates,
    }


def _run(cell: Cell, path: Path, params: Params) -> dict[str, Any]:
    result, tested = cell.result or {}, cell.tested
    chosen: dict[str, Any] = {}
    for budget in BUDGETS:
        row = cell.chosen[budget]
        if row is None:
            chosen[budget] = None
            continue
        report = (tested or {"budgets": {}})["budgets"].get(budget)
        chosen[budget] = {"update": row["update"], "validation": row["accuracy"]}
        chosen[budget] |= {
            "test": report and report["accuracy"],
            "interval": report and report["interval"],
            "tokens": row["tokens"],
            "cpu_seconds": row["cpu_seconds"],
        }
    is_further = cell.seed in cell.plan.more_seeds  # of leaders, which the other runs decide
    limits = f" --task {cell.task} --entry {cell.entry} --seed {cell.seed}"
    section = read_yaml(PARAMS)["method"].get(cell.method, {})
    of_task = {key: as_text(value) for key, value in flat(cell.plan.tasks[cell.task]).items()}
    return {
        "task": cell.task,
        "entry": cell.entry,
        "seed": cell.seed,
        "folder": str(cell.key.folder),
        "rate": cell.rate,
        "settings": of_task | _changed(section, cell.settings, cell.method),
        "command": f"dopsd tournament tune run --plan {path}{'' if is_further else limits}",
        "fingerprint": result["fingerprint"],
        "code": result["code"],
        "ended": result["ended"],
        "curve": result["curve"],
        "chosen": chosen,
        "reached": reached(result["curve"], cell.plan.gain),
    }


def _changed(section: dict[str, Any], settings: dict[str, Any], method: str) -> dict[str, str]:
    """Return the settings of a run that differ from those of params.yaml, by key."""
    before, after = flat(section), flat(settings)
    return {
        f"method.{method}.{key}": as_text(value)
        for key, value in after.items()
        if key not in before or before[key] != value
    }


def _switch(cell: Cell, made: list[Cell]) -> dict[str, Any]:
    unchanged = next(
        (c for c in made if (c.task, c.entry, c.seed) == (cell.task, cell.entry, cell.seed)), None
    )
    best = best_within(cell)
    before = best_within(unchanged) if unchanged else None
    return {
        "task": cell.task,
        "switch": cell.switch,
        "entry": cell.entry,
        "settings": cell.plan.switches[cell.switch].settings,
        "seed": cell.seed,
        "validation": best,
        "over_default": None if best is None or before is None else best - before,
    }
