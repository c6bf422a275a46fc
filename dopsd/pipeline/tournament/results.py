"""Collect the results of a tournament in one file, from which tables and page are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.config.loading import read_yaml
from dopsd.config.params_file import flat
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import REPORTS
from dopsd.models.files import base_digest
from dopsd.pipeline.tournament.cells import BUDGETS, PARAMS, RUN, SWITCH, Cell
from dopsd.pipeline.tournament.choice import (
    best_rate,
    best_within,
    cells_of,
    finals,
    reason_of,
    tried_rates,
    tuning,
)
from dopsd.pipeline.tournament.standings import pairs, reached, standings

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params
    from dopsd.pipeline.tournament.plan import Plan

OUT = REPORTS / "tournament"
RESULTS = OUT / "results.json"
VERSION = 1


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
    resamples = params.evaluate.bootstrap
    return {
        "version": VERSION,
        "plan": str(path),
        "rules": plan.model_dump(mode="json"),
        "params": sha256(PARAMS),
        "bases": {task: _base(params, made, task) for task in plan.tasks},
        "entries": {entry: _entry(plan, entry) for entry in plan.entries},
        "runs": [_run(cell, path, params) for cell in made],
        "standings": standings(made, resamples),
        "pairs": pairs(made, resamples),
        "switches": [_switch(cell, made) for cell in switches],
        "warnings": _warnings(plan, made),
    }


def write(plan: Plan, path: Path, params: Params) -> dict[str, Any]:
    """Write the results to RESULTS, and return them."""
    results = gather(plan, path, params)
    write_json(RESULTS, results)
    return results


def _base(params: Params, made: list[Cell], task: str) -> dict[str, Any]:
    model = params.model_of(task)
    base: dict[str, Any] = {"path": model.path, "digest": base_digest(model)}
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
    limits = f"--task {cell.task} --entry {cell.entry} --seed {cell.seed}"
    section = read_yaml(PARAMS)["method"].get(cell.method, {})
    return {
        "task": cell.task,
        "entry": cell.entry,
        "seed": cell.seed,
        "folder": str(cell.key.folder),
        "rate": cell.rate,
        "settings": _changed(section, cell.settings, cell.method),
        "command": f"dopsd tournament run --plan {path} {limits}",
        "fingerprint": result["fingerprint"],
        "ended": result["ended"],
        "curve": result["curve"],
        "chosen": chosen,
        "reached": reached(result["curve"], cell.plan.gain),
    }


def _changed(section: dict[str, Any], settings: dict[str, Any], method: str) -> dict[str, str]:
    """Return the settings of a run that differ from those of params.yaml, by key."""
    before, after = flat(section), flat(settings)
    return {
        f"method.{method}.{key}": str(value)
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


def _warnings(plan: Plan, made: list[Cell]) -> list[str]:
    """Return what limits the results beyond their intervals."""
    warnings = []
    if any(cell.tested is None for cell in made):
        warnings.append("Not tested: all accuracies are of the validation split, which chose them.")
    for task in plan.tasks:
        for entry in plan.entries:
            cells = [cell for cell in made if (cell.task, cell.entry) == (task, entry)]
            warnings += _warnings_of(plan, task, entry, cells)
    return warnings


def _warnings_of(plan: Plan, task: str, entry: str, cells: list[Cell]) -> list[str]:
    """Return the warnings of an entry on a task, with its finished runs."""
    name, rates = f"{entry} on {task}", plan.tuning.rates
    tried = [*tuning(plan, task, entry), *finals(plan, task, entry, plan.seeds)]
    reasons = [reason for cell in tried if (reason := reason_of(cell))]
    ends = [result["ended"] for cell in cells if (result := cell.result) and result["ended"]]
    warnings = []
    if reasons and not cells:
        warnings.append(f"{entry} takes no part on {task}: {reasons[0]}")
    if ends:
        warnings.append(
            f"{name}: {len(ends)} of {len(cells)} runs ended before both budgets were used:"
            f" {ends[0]}."
        )
    chosen = best_rate(plan, task, entry)
    if cells and len(rates) > 1 and chosen in (min(rates), max(rates)):
        warnings.append(f"{name}: {chosen:g} is at the edge of the rates that were tried.")
    return warnings
