"""What limits a tournament's results beyond their intervals."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dopsd.core.percent import percent
from dopsd.pipeline.tournament.cells import BUDGETS
from dopsd.pipeline.tournament.choice import best_rate, finals, reason_of, tuning

if TYPE_CHECKING:
    from dopsd.pipeline.tournament.cells import Cell
    from dopsd.pipeline.tournament.plan import Plan


def warnings_of(plan: Plan, made: list[Cell], looks: list[dict[str, Any]]) -> list[str]:
    """Return what limits the results beyond their intervals, the worst first.

    Args:
        plan: the rules.
        made: the finished runs.
        looks: when the test split of a `task` was looked at.
    """
    warnings, further = [], []
    if any(cell.tested is None for cell in made):
        warnings.append("Not tested: all accuracies are of the validation split, which chose them.")
    warnings += [
        f"The test split of {task} was looked at {times} times, so the best may be too high."
        for task, times in Counter(row["task"] for row in looks).items()
        if times > 1
    ]
    for task in plan.tasks:
        for entry in plan.entries:
            cells = [cell for cell in made if (cell.task, cell.entry) == (task, entry)]
            warnings += _missing(plan, task, entry, cells)
            further += _limits(plan, task, entry, cells)
    return warnings + further


def _missing(plan: Plan, task: str, entry: str, cells: list[Cell]) -> list[str]:
    """Return which runs of an entry on a task are not in the tables, and why."""
    tuned = tuning(plan, task, entry)
    seeds = finals(plan, task, entry, [*plan.seeds, *plan.more_seeds])
    name, warnings = f"{entry} on {task}", []
    if failed := [cell for cell in [*tuned, *seeds] if reason_of(cell)]:
        warnings.append(
            f"{name}: runs that could not be made: {len(failed)}; the first: {reason_of(failed[0])}"
        )
    elif not cells and all(cell.result for cell in tuned):
        warnings.append(f"{name}: no checkpoint of the tuning runs is within a budget.")
    for budget in BUDGETS:
        if empty := [cell for cell in cells if not cell.chosen[budget]]:
            warnings.append(
                f"{name}: {len(empty)} of {len(cells)} runs have no checkpoint within the budget of"
                f" {budget}."
            )
    return warnings


def _limits(plan: Plan, task: str, entry: str, cells: list[Cell]) -> list[str]:
    """Return what limits the finished runs of an entry on a task."""
    results = [result for cell in cells if (result := cell.result)]
    name, rates, warnings = f"{entry} on {task}", plan.tuning.rates, []
    if len({result["code"] for result in results}) > 1:
        warnings.append(f"{name}: different versions of the code trained its runs.")
    if ends := [r["ended"] for r in results if r["ended"] and not _is_used(plan, r["curve"][-1])]:
        why = f"at {plan.most_updates} updates" if ends[0] == "most_updates" else ends[0]
        warnings.append(
            f"{name}: {len(ends)} of {len(cells)} runs ended before both budgets were used: {why}."
        )
    last = [(r["curve"][0]["accuracy"], r["curve"][-1]["accuracy"]) for r in results]
    if fallen := [end for base, end in last if end < base - plan.gain]:
        warnings.append(
            f"{name}: {len(fallen)} of {len(cells)} runs collapsed: the last checkpoint has"
            f" {percent(min(fallen))}% on validation at worst, below the base. The accuracy is that"
            " of a checkpoint before, and no tried rate may suit the method."
        )
    chosen = best_rate(plan, task, entry)
    if cells and len(rates) > 1 and chosen in (min(rates), max(rates)):
        warnings.append(f"{name}: {chosen:g} is at the edge of the rates that were tried.")
    return warnings


def _is_used(plan: Plan, last: dict[str, Any]) -> bool:
    """Return whether a run had used both budgets at its last checkpoint."""
    return bool(last["tokens"] >= plan.tokens and last["cpu_seconds"] >= plan.seconds)
