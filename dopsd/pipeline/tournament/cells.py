"""One run of a tournament: its settings, its folder, and what it wrote there."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import BETWEEN
from dopsd.config.loading import checked, read_yaml
from dopsd.core.files import read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import RunKey
from dopsd.pipeline.tournament.plan import Plan, merged
from dopsd.tasks.common.storage import data_files
from dopsd.training.run_identity import scratch_folder

if TYPE_CHECKING:
    from dopsd.config.params import Params

PARAMS = Path("params.yaml")
RESULT = "tournament.json"  # in the run's folder
TESTED = "tournament_test.json"  # beside it
TUNE, RUN, SWITCH, TEST = "tune", "run", "switch", "test"
IMPOSSIBLE = 3  # exit code of the process of a run that cannot be made
BUDGETS = {"tokens": "tokens", "seconds": "cpu_seconds"}  # the cost that each limits
COSTS = ("rollouts", "tokens", "cpu_seconds", "seconds", "flops")
_known: dict[tuple[str, str], dict[str, Any]] = {}  # by run, and by all settings


@cache
def _parsed(text: str) -> dict[str, Any]:
    """Return the settings in the text of params.yaml, which is that of the current folder."""
    del text  # tells one file from another; the message of a fault names the file
    return read_yaml(PARAMS)


@dataclass(frozen=True)
class Cell:
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
    def share(self) -> float:
        """The share of the budgets that the run may use."""
        return self.plan.tuning.share if self.part == TUNE else 1.0

    @property
    def limits(self) -> dict[str, float]:
        """The budgets of the run, by the cost that each limits."""
        budgets = {"tokens": self.plan.tokens, "cpu_seconds": self.plan.seconds}
        return {cost: budget * self.share for cost, budget in budgets.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """The changes of the method's section, with the learning rate."""
        changes = self.plan.settings_of(self.entry, self.task)
        if self.switch:
            changes = merged(changes, self.plan.switches[self.switch].settings)
        return merged(changes, {"train": {"learning_rate": self.rate}})

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the run and its scores: settings, data and base, but not code."""
        return {
            **self._fixed(),
            "budgets": [self.plan.tokens, self.plan.seconds, self.share, self.plan.most_updates],
            "checkpoints": self.plan.checkpoints.model_dump(),
        }

    def _fixed(self) -> dict[str, Any]:
        """Return what params.yaml, data and base decide.

        It is computed once for the same settings: data and base stay while a command runs.
        """
        changes = json.dumps([self.settings, self.plan.tasks[self.task]], sort_keys=True)
        name = str(self.key.folder.resolve()), changes + PARAMS.read_text(encoding="utf-8")
        if name not in _known:
            params = self.params(self.plan.most_updates)
            run, select = params.run(*self.key.parts), params.select
            files = [*data_files(self.task, "validation"), *data_files(self.task, "test")]
            _known[name] = {
                "training": scratch_folder(run).name.rpartition("-")[0],
                "problems": [sha256(path)[:16] for path in files],
                "protocol": params.evaluate.protocols[select.protocol].decisive(),
                "split": select.split,
            }
        return _known[name]

    @property
    def result(self) -> dict[str, Any] | None:
        """What the finished run wrote; None if it is unfinished or was made by other rules."""
        path = self.key.folder / RESULT
        if not path.is_file():
            return None
        found = read_json(path, "dopsd tournament")
        return found if found["identity"] == self.identity else None

    @property
    def chosen(self) -> dict[str, dict[str, float] | None]:
        """The best checkpoint on validation within each budget, the earliest of equal ones."""
        rows = [row for row in (self.result or {"curve": []})["curve"] if row["update"]]
        chosen = {}
        for budget, cost in BUDGETS.items():
            within = [row for row in rows if row[cost] <= self.limits[cost]]
            chosen[budget] = max(within, key=lambda row: row["accuracy"], default=None)
        return chosen

    @property
    def tested(self) -> dict[str, Any] | None:
        """What the test of the chosen checkpoints wrote; None if it was not made for this run."""
        path = self.key.folder / TESTED
        if self.result is None or not path.is_file():
            return None
        found = read_json(path, "dopsd tournament")
        is_same = found["identity"] == self.identity and found["updates"] == self.chosen_updates
        return found if is_same else None

    @property
    def chosen_updates(self) -> dict[str, int]:
        """The update of the chosen checkpoint, by budget."""
        return {budget: int(row["update"]) for budget, row in self.chosen.items() if row}

    def params(self, updates: int) -> Params:
        """Return the settings of the run with this many updates.

        Raises:
            DopsdError: if they are wrong.
        """
        raw = merged(
            deepcopy(_parsed(PARAMS.read_text(encoding="utf-8"))), self.plan.tasks[self.task]
        )
        ends = {"updates": updates, "checkpoint_every": 1}
        section = merged(raw["method"].get(self.method, {}), self.settings)
        raw["method"][self.method] = merged(section, {"train": ends})
        variants: dict[str, Any] = {"default": {}, self.variant: {}}  # names the run's folder
        raw["ablate"] = {"task": self.task, "method": self.method, "variants": variants}
        raw["matrix"] = {"tasks": [self.task], "methods": [self.method], "seeds": [self.seed]}
        raw["pretrain"] = {**raw.get("pretrain", {}), "tasks": []}
        raw["tracking"] = {**raw.get("tracking", {}), "enabled": False}
        return checked(raw, f"{self}: {PARAMS}")
