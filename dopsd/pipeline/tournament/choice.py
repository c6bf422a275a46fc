"""Which runs a tournament needs: rates to try, runs at the best ones, more seeds of leaders."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from dopsd.core.files import WORK, read_json
from dopsd.pipeline.tournament.cells import BUDGETS, RUN, SWITCH, TUNE, Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dopsd.pipeline.tournament.plan import Plan

LOGS = WORK / "tournament"
FAILED = "tournament_failed.json"  # in a run's folder: why it cannot be made


@dataclass(frozen=True)
class Chosen:
    """Which runs of a tournament to make.

    Attributes:
        tasks: tasks; empty: all.
        entries: entries; empty: all.
        seeds: seeds; empty: all.
    """

    tasks: Sequence[str] = ()
    entries: Sequence[str] = ()
    seeds: Sequence[int] = ()

    def has(self, cell: Cell) -> bool:
        """Return whether a run is one of these."""
        seeds = () if cell.part == TUNE else self.seeds  # tuning has a seed of its own
        pairs = ((self.tasks, cell.task), (self.entries, cell.entry), (seeds, cell.seed))
        return all(not names or name in names for names, name in pairs)


def tuning(plan: Plan, task: str, entry: str) -> list[Cell]:
    """Return the runs that try the learning rates of an entry on a task."""
    return [Cell(plan, TUNE, task, entry, plan.tuning.seed, r) for r in plan.tuning.rates]


def best_rate(plan: Plan, task: str, entry: str) -> float | None:
    """Return the rate whose chosen checkpoint is best on validation.

    The budget of tokens decides, for an entry with nothing within it that of seconds. A rate that
    learned nothing takes no part; of equal ones the lowest wins. None: a run is missing that could
    still be made, or none learned.
    """
    tried = tried_rates(plan, task, entry)
    return max(tried, key=lambda rate: (tried[rate], -rate)) if tried else None


def tried_rates(plan: Plan, task: str, entry: str) -> dict[float, float]:
    """Return the best validation accuracy of each tried rate; empty while runs are missing."""
    cells = tuning(plan, task, entry)
    if not all(cell.result or reason_of(cell) for cell in cells):
        return {}
    found = {cell.rate: best_within(cell) for cell in cells if cell.result}
    return {rate: best for rate, best in found.items() if best is not None}


def best_within(cell: Cell) -> float | None:
    """Return a run's best accuracy within the budget of tokens, else of seconds; None: in none."""
    row = cell.chosen["tokens"] or cell.chosen["seconds"]
    return row["accuracy"] if row else None


def finals(plan: Plan, task: str, entry: str, seeds: Iterable[int]) -> list[Cell]:
    """Return an entry's runs that count, at its best rate; none while that is not known."""
    rate = best_rate(plan, task, entry)
    return [] if rate is None else [Cell(plan, RUN, task, entry, seed, rate) for seed in seeds]


def leaders(plan: Plan, task: str) -> list[str]:
    """Return the entries of a task that get more seeds; none while their runs are missing.

    They are: our own; by each budget the strongest of the entries of d_opsd, and the strongest that
    knows as much as our own; and the best by the first budget until there are `best`. Ranks are the
    means over seeds of the chosen checkpoints on validation.
    """
    rankings = {budget: ranking(plan, task, budget) for budget in BUDGETS}
    for entry in plan.entries:
        cells = finals(plan, task, entry, plan.seeds) or tuning(plan, task, entry)
        if not all(cell.result or reason_of(cell) for cell in cells):
            return []
    own = [plan.own] if any(plan.own in order for order in rankings.values()) else []
    named = [name for order in rankings.values() for name in opponents(plan, task, order)]
    named = list(dict.fromkeys(own + named))
    return list(dict.fromkeys([*named, *rankings["tokens"]]))[: max(plan.best, len(named))]


def ranking(plan: Plan, task: str, budget: str) -> list[str]:
    """Return the entries with all first seeds, by the mean of their chosen checkpoints."""
    means = {}
    for entry in plan.entries:
        rows = [cell.chosen[budget] for cell in finals(plan, task, entry, plan.seeds)]
        if rows and all(rows):
            means[entry] = fmean(row["accuracy"] for row in rows if row)
    return sorted(means, key=means.__getitem__, reverse=True)


def opponents(plan: Plan, task: str, order: Sequence[str]) -> list[str]:
    """Return the strongest entry of d_opsd, and the strongest that knows as much as our own.

    Args:
        plan: the rules.
        task: the task.
        order: the entries, the strongest first.
    """
    known = plan.knows(plan.own, task)
    others = [entry for entry in order if entry != plan.own]
    named = [entry for entry in others if plan.method_of(entry) == "d_opsd"][:1]
    return named + [e for e in others if plan.knows(e, task) == known and e not in named][:1]


def cells_of(plan: Plan, part: str) -> list[Cell]:
    """Return the runs of a part that are known by now.

    Args:
        plan: the rules.
        part: TUNE, RUN (with the further seeds of the leaders), or SWITCH.
    """
    if part == TUNE:
        return [c for t in plan.tasks for e in plan.entries for c in tuning(plan, t, e)]
    if part == RUN:
        pairs = [(task, entry) for task in plan.tasks for entry in plan.entries]
        first = [c for pair in pairs for c in finals(plan, *pair, plan.seeds)]
        more = [
            c
            for t in plan.tasks
            for e in leaders(plan, t)
            for c in finals(plan, t, e, plan.more_seeds)
        ]
        return sorted(first, key=lambda cell: plan.seeds.index(cell.seed)) + more
    return [
        Cell(plan, SWITCH, task, switch.entry, plan.seeds[0], rate, name)
        for name, switch in plan.switches.items()
        for task in plan.switch_tasks
        if (rate := best_rate(plan, task, switch.entry)) is not None
    ]


def log_of(cell: Cell) -> Path:
    """Return the log of a run's process."""
    return LOGS / f"{cell.key.stage}.log"


def reason_of(cell: Cell) -> str:
    """Return why a run cannot be made; empty if it can, or was not tried with these settings."""
    path = cell.key.folder / FAILED
    if not path.is_file():
        return ""
    found = read_json(path, "dopsd tournament")
    return str(found["reason"]) if found["identity"] == cell.identity else ""
