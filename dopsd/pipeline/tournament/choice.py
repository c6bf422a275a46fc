"""Which runs a tournament needs: rates to try, runs at the best ones, more seeds of leaders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from dopsd.core.files import WORK
from dopsd.pipeline.tournament.cells import RUN, SWITCH, TUNE, Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dopsd.pipeline.tournament.plan import Plan

LOGS = WORK / "tournament"
FAILED = ".failed"  # ends the name of a file with the reason why a run cannot be made


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
        pairs = ((self.tasks, cell.task), (self.entries, cell.entry), (self.seeds, cell.seed))
        return all(not names or name in names for names, name in pairs)


def tuning(plan: Plan, task: str, entry: str) -> list[Cell]:
    """Return the runs that try the learning rates of an entry on a task."""
    return [Cell(plan, TUNE, task, entry, plan.tuning.seed, r) for r in plan.tuning.rates]


def best_rate(plan: Plan, task: str, entry: str) -> float | None:
    """Return the rate whose best scored checkpoint within the budget is highest on validation.

    A rate that learned nothing takes no part; of equal ones the lowest wins. None: a run is missing
    that could still be made, or none learned.
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
    """Return a run's best accuracy of the checkpoints within either budget; None: there is none."""
    rows = [row for row in cell.chosen.values() if row]
    return max((row["accuracy"] for row in rows), default=None)


def finals(plan: Plan, task: str, entry: str, seeds: Iterable[int]) -> list[Cell]:
    """Return an entry's runs that count, at its best rate; none while that is not known."""
    rate = best_rate(plan, task, entry)
    return [] if rate is None else [Cell(plan, RUN, task, entry, seed, rate) for seed in seeds]


def leaders(plan: Plan, task: str) -> list[str]:
    """Return the entries of a task that get more seeds; none while their runs are missing.

    They are: our own, the strongest of the entries of d_opsd, the strongest that knows as much as
    our own, and the best ones until there are `best`. They are ranked by validation: the mean over
    seeds of the best checkpoint within either budget.
    """
    ranks: dict[str, float] = {}
    for entry in plan.entries:
        cells = finals(plan, task, entry, plan.seeds)
        if not all(cell.result or reason_of(cell) for cell in cells or tuning(plan, task, entry)):
            return []
        made = [best for cell in cells if (best := best_within(cell)) is not None]
        if made and len(made) == len(cells):
            ranks[entry] = fmean(made)
    ranking = sorted(ranks, key=ranks.__getitem__, reverse=True)
    known = plan.knows(plan.own, task)
    firsts = [
        [plan.own],
        [entry for entry in ranking if plan.method_of(entry) == "d_opsd"][:1],
        [e for e in ranking if e != plan.own and plan.knows(e, task) == known][:1],
    ]
    named = [entry for entries in firsts for entry in entries if entry in ranks]
    return list(dict.fromkeys([*named, *ranking]))[: max(plan.best, len(set(named)))]


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
    path = log_of(cell).with_suffix(FAILED)
    if not path.is_file():
        return ""
    found = json.loads(path.read_text())
    return str(found["reason"]) if found["identity"] == cell.identity else ""
