"""The runs of a tournament: what each one is, what it wrote, and which ones are needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.tournament.plan import Plan, merged
from dopsd.algorithms.common.config import BETWEEN
from dopsd.config.loading import checked, read_yaml
from dopsd.config.params import Params
from dopsd.config.profiles.layers import completed
from dopsd.core.files import WORK, read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import RunKey
from dopsd.tasks.common.storage import data_files
from dopsd.training.run_identity import identify

PARAMS = Path("params.yaml")
LOGS = WORK / "tournament"
RESULT = "tournament.json"  # in a run's folder
TESTED = "tournament_test.json"  # beside it
FAILED = "tournament_failed.json"  # beside it: why the run cannot be made
TUNE, RUN, SWITCH, TEST = "tune", "run", "switch", "test"
_decided: dict[str, dict[str, Any]] = {}  # what `Run.decided_by_files` returned


@cache
def settings() -> dict[str, Any]:
    """Return what params.yaml holds."""
    return read_yaml(PARAMS)


@dataclass(frozen=True)
class Run:
    """One run: an entry on a task with a seed and a learning rate.

    Attributes:
        plan: the tournament's rules.
        part: TUNE, RUN or SWITCH.
        task: the task.
        entry: the entry.
        seed: seed of the run.
        rate: learning rate.
        switch: the switch, in that part.
    """

    plan: Plan
    part: str
    task: str
    entry: str
    seed: int
    rate: float
    switch: str = ""

    def __str__(self) -> str:
        detail = f"{self.rate:g}" if self.part == TUNE else self.switch
        return f"{self.part} {self.task}/{self.entry}/{self.seed} {detail}".rstrip()

    @property
    def method(self) -> str:
        """The algorithm."""
        return self.plan.method_of(self.entry)

    @property
    def variant(self) -> str:
        """The name of the run's settings, below the algorithm's."""
        name = f"{self.plan.name}_{self.entry}"
        if self.part == TUNE:
            return f"{name}_rate_{1 + self.plan.tuning.rates.index(self.rate)}"
        return f"{name}_switch_{self.switch}" if self.switch else f"{name}_final"

    @property
    def key(self) -> RunKey:
        """Where the results are: runs/<task>/<method>-<variant>/<seed>."""
        return RunKey(self.task, f"{self.method}{BETWEEN}{self.variant}", self.seed)

    @property
    def protocol(self) -> str:
        """The protocol that chooses checkpoints, and with which they are compared."""
        return str(self.params(1).select.protocol)

    @property
    def log(self) -> Path:
        """What the run's process printed."""
        return LOGS / f"{self.key.stage}.log"

    @property
    def share(self) -> float:
        """The share of the budgets that the run may use."""
        return self.plan.tuning.share if self.part == TUNE else 1.0

    @property
    def limits(self) -> dict[str, float]:
        """The budgets of the run, by the cost that each limits."""
        return {cost: vars(self.plan)[b] * self.share for b, cost in self.plan.budgets.items()}

    @property
    def changes(self) -> dict[str, Any]:
        """The changes of the method's section, with the learning rate."""
        changes = self.plan.settings_of(self.entry, self.task)
        if self.switch:
            changes = merged(changes, self.plan.switches[self.switch].settings)
        return merged(changes, {"train": {"learning_rate": self.rate}})

    def params(self, updates: int) -> Params:
        """Return all settings of the run with this many updates."""
        ends = {"updates": updates, "checkpoint_every": 1}
        raw = completed(settings())
        section = merged(merged(raw["method"].get(self.method, {}), self.changes), {"train": ends})
        variants: dict[str, Any] = {"default": {}, self.variant: {}}  # names the run's folder
        own = {
            "method": {**raw["method"], self.method: section},
            "ablate": {"task": self.task, "method": self.method, "variants": variants},
            "matrix": {"tasks": [self.task], "methods": [self.method], "seeds": [self.seed]},
            "pretrain": {**raw.get("pretrain", {}), "tasks": []},
            "evaluate": {**raw.get("evaluate", {}), "curve": self.plan.curve},
            "tracking": {**raw.get("tracking", {}), "enabled": False, "also": []},
        }
        return checked(raw | own, f"{self}: {PARAMS}")

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the run and its scores: settings, data, base and budgets, but not code."""
        return {
            **self._decided_by_files(),
            "budgets": [self.plan.tokens, self.plan.seconds, self.share, self.plan.most_updates],
            "checkpoints": self.plan.checkpoints.model_dump(),
        }

    def _decided_by_files(self) -> dict[str, Any]:
        """Return what params.yaml, data and base decide; they stay while a command runs."""
        name = json.dumps([str(self.key.folder), self.changes, self.plan.most_updates])
        if name not in _decided:
            params = self.params(self.plan.most_updates)
            run, select = params.run(*self.key.parts), params.select
            files = [*data_files(self.task, "validation"), *data_files(self.task, "test")]
            _decided[name] = {
                "training": identify(run).folder.name.rpartition("-")[0],
                "problems": [sha256(path)[:16] for path in files],
                "protocol": params.evaluate.protocols[select.protocol].decisive(),
                "split": select.split,
            }
        return _decided[name]

    def _written(self, name: str) -> dict[str, Any] | None:
        """Return what a file of the run says; None: none is there, or one made by other rules."""
        path = self.key.folder / name
        found = read_json(path, "the tournament") if path.is_file() else None
        return found if found and found["identity"] == self.identity else None

    @property
    def result(self) -> dict[str, Any] | None:
        """What the finished run wrote."""
        return self._written(RESULT)

    @property
    def failure(self) -> str:
        """Why the run cannot be made; empty if it can, or was not tried."""
        return str((self._written(FAILED) or {"reason": ""})["reason"])

    @property
    def tested(self) -> dict[str, Any] | None:
        """What the test of the chosen checkpoints wrote."""
        found = self._written(TESTED) if self.result else None
        rules = self.chosen_updates, self.plan.used
        # older files do not say what was used: nothing
        return found if found and (found["updates"], found.get("used", 0)) == rules else None

    @property
    def chosen(self) -> dict[str, dict[str, float] | None]:
        """The best checkpoint on validation within each budget, the earliest of equal ones."""
        rows = [row for row in (self.result or {"curve": []})["curve"] if row["update"]]
        chosen = {}
        for budget, cost in self.plan.budgets.items():
            within = [row for row in rows if row[cost] <= self.limits[cost]]
            chosen[budget] = max(within, key=lambda row: row["accuracy"], default=None)
        return chosen

    @property
    def chosen_updates(self) -> dict[str, int]:
        """The update of the chosen checkpoint, by budget."""
        return {budget: int(row["update"]) for budget, row in self.chosen.items() if row}

    @property
    def best(self) -> float | None:
        """The best accuracy within the budget of tokens, else of seconds; None: in none."""
        row = self.chosen["tokens"] or self.chosen.get("seconds")
        return row["accuracy"] if row else None


def tuning(plan: Plan, task: str, entry: str) -> list[Run]:
    """Return the runs that try the learning rates of an entry on a task; none for one rate."""
    if len(plan.tuning.rates) == 1:
        return []
    return [Run(plan, TUNE, task, entry, plan.tuning.seed, rate) for rate in plan.tuning.rates]


def tried_rates(plan: Plan, task: str, entry: str) -> dict[float, float]:
    """Return the best validation accuracy by rate; empty while runs are missing."""
    runs = tuning(plan, task, entry)
    if not all(run.result or run.failure for run in runs):
        return {}
    found = {run.rate: run.best for run in runs if run.result}
    return {rate: best for rate, best in found.items() if best is not None}


def best_rate(plan: Plan, task: str, entry: str) -> float | None:
    """Return the rate that is best on validation, the lowest of equal ones; None: not known yet.

    A plan with one rate has nothing to try.
    """
    if len(plan.tuning.rates) == 1:
        return plan.tuning.rates[0]
    tried = tried_rates(plan, task, entry)
    return max(tried, key=lambda rate: (tried[rate], -rate)) if tried else None


def finals(plan: Plan, task: str, entry: str, seeds: Iterable[int]) -> list[Run]:
    """Return an entry's runs that count, at its best rate; none while that is not known."""
    rate = best_rate(plan, task, entry)
    return [] if rate is None else [Run(plan, RUN, task, entry, seed, rate) for seed in seeds]


def leaders(plan: Plan, task: str) -> list[str]:
    """Return the entries of a task that get more seeds; none while their runs are missing.

    They are: our own; by each budget the strongest of the entries of d_opsd, and the strongest that
    knows as much as our own; and the best by the first budget until there are `best`. Ranks are the
    means over seeds of the chosen checkpoints on validation.
    """
    rankings = {budget: ranking(plan, task, budget) for budget in plan.budgets}
    for entry in plan.entries:
        runs = finals(plan, task, entry, plan.seeds) or tuning(plan, task, entry)
        if not all(run.result or run.failure for run in runs):
            return []
    own = [plan.own] if any(plan.own in order for order in rankings.values()) else []
    named = [name for order in rankings.values() for name in opponents(plan, task, order)]
    named = list(dict.fromkeys(own + named))
    return list(dict.fromkeys([*named, *rankings["tokens"]]))[: max(plan.best, len(named))]


def ranking(plan: Plan, task: str, budget: str) -> list[str]:
    """Return the entries with all first seeds, by the mean of their chosen checkpoints."""
    means = {}
    for entry in plan.entries:
        rows = [run.chosen[budget] for run in finals(plan, task, entry, plan.seeds)]
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


def runs_of(plan: Plan, part: str) -> list[Run]:
    """Return the runs of a part that are known by now.

    Args:
        plan: the rules.
        part: TUNE, RUN (with the further seeds of the leaders), or SWITCH.
    """
    pairs = [(task, entry) for task in plan.tasks for entry in plan.entries]
    if part == TUNE:
        return [run for pair in pairs for run in tuning(plan, *pair)]
    if part == RUN:
        first = [run for pair in pairs for run in finals(plan, *pair, plan.seeds)]
        led = [(task, entry) for task in plan.tasks for entry in leaders(plan, task)]
        more = [run for pair in led for run in finals(plan, *pair, plan.more_seeds)]
        return sorted(first, key=lambda run: plan.seeds.index(run.seed)) + more
    return [
        Run(plan, SWITCH, task, switch.entry, plan.seeds[0], rate, name)
        for name, switch in plan.switches.items()
        for task in plan.switch_tasks
        if (rate := best_rate(plan, task, switch.entry)) is not None
    ]
