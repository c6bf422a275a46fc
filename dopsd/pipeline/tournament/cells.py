"""One run of a tournament: its settings, and its training within budgets."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import BETWEEN
from dopsd.config.loading import checked, read_yaml
from dopsd.core.files import WORK, read_json, write_json
from dopsd.core.paths import LOG, RunKey
from dopsd.core.tables import read_log
from dopsd.evaluation.evaluator import Evaluator
from dopsd.models.architecture import read_config
from dopsd.pipeline.estimate import Shape, lora_parameters
from dopsd.pipeline.tournament.plan import Plan, merged
from dopsd.training.run_settings import scratch_folder
from dopsd.training.train import train

if TYPE_CHECKING:
    from dopsd.config.params import Params

PARAMS = Path("params.yaml")
RESULT = "tournament.json"  # in the run's folder
FIRST = 10  # updates of the first part of a run, which shows what an update costs
TESTED = "tournament_test.json"  # beside it
TUNE, RUN, SWITCH, TEST = "tune", "run", "switch", "test"
BUDGETS = {"tokens": "tokens", "seconds": "cpu_seconds"}  # the cost that each limits
COSTS = ("rollouts", "tokens", "cpu_seconds", "seconds", "flops")
KEPT = ("accuracy", "interval", "n", "per_problem")  # of a report on test
Costs = dict[str, float]
_fingerprints: dict[str, str] = {}


@cache
def _raw() -> dict[str, Any]:
    """Return params.yaml as it was when this process first read it."""
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
        if self.part == TUNE:
            rates = self.plan.tuning.rates
            return f"{self.entry}_rate_{1 + rates.index(self.rate)}"
        return f"{self.entry}_{self.switch}" if self.switch else f"{self.entry}_final"

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
            "training": self._training(),
            "budgets": [self.plan.tokens, self.plan.seconds, self.share, self.plan.most_updates],
            "checkpoints": self.plan.checkpoints.model_dump(),
        }

    def _training(self) -> str:
        """Return the fingerprint of the run's settings and inputs; known ones are kept."""
        changes = json.dumps([self.settings, self.plan.tasks[self.task]], sort_keys=True)
        name = f"{self.key} {changes}"
        if name not in _fingerprints:
            run = self.params(self.plan.most_updates).run(*self.key.parts)
            _fingerprints[name] = scratch_folder(run).name.rpartition("-")[0]
        return _fingerprints[name]

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
        path, result = self.key.folder / TESTED, self.result
        if result is None or not path.is_file():
            return None
        found = read_json(path, "dopsd tournament")
        return found if found["fingerprint"] == result["fingerprint"] else None

    def test(self) -> None:
        """Score base and chosen checkpoints on the test split, and write the result."""
        result = self.result
        assert result is not None  # the schedule tests finished runs
        params = self.params(result["updates"])
        evaluator = Evaluator(params.evaluation(self.task, self.key.method), "test")
        rows = {budget: row for budget, row in self.chosen.items() if row}
        updates = sorted({int(row["update"]) for row in rows.values()})
        adapters: list[Path | None] = [None, *(checkpoint_of(self.key, u) for u in updates)]
        protocol = params.evaluate.protocols[params.select.protocol]
        (reports,) = evaluator.reports(str(self), adapters, protocol)
        kept = [{name: report[name] for name in KEPT} for report in reports]
        by_update = dict(zip(updates, kept[1:], strict=True))
        write_json(
            self.key.folder / TESTED,
            {
                "fingerprint": result["fingerprint"],
                "base": kept[0],
                "budgets": {name: by_update[int(row["update"])] for name, row in rows.items()},
            },
        )

    def params(self, updates: int) -> Params:
        """Return the settings of the run with this many updates.

        Raises:
            DopsdError: if they are wrong.
        """
        raw = merged(deepcopy(_raw()), self.plan.tasks[self.task])
        ends = {"updates": updates, "checkpoint_every": self.plan.checkpoints.every}
        section = merged(raw["method"].get(self.method, {}), self.settings)
        raw["method"][self.method] = merged(section, {"train": ends})
        variants: dict[str, Any] = {"default": {}, self.variant: {}}  # names the run's folder
        raw["ablate"] = {"task": self.task, "method": self.method, "variants": variants}
        raw["matrix"] = {"tasks": [self.task], "methods": [self.method], "seeds": [self.seed]}
        raw["pretrain"] = {**raw.get("pretrain", {}), "tasks": []}
        raw["tracking"] = {**raw.get("tracking", {}), "enabled": False}
        return checked(raw, f"{self}: {PARAMS}")

    def make(self) -> None:
        """Train until a budget is used up, score the checkpoints, and write the result.

        Raises:
            DopsdError: if the run cannot learn, or was stopped by a signal.
        """
        updates = min(FIRST, self.plan.most_updates)
        is_probed = False  # a run that depends on its length begins again, once it is known
        while True:
            params = self.params(updates)
            run = params.run(*self.key.parts)
            train(run, None)
            made = read_json(self.key.folder / "train.json", "dopsd train")
            costs = costs_of(made["fingerprint"])
            further, is_starved = self.further(updates, costs), made["updates"] < updates
            if is_starved or further == updates or is_probed:
                break
            updates, is_probed = further, run.algorithm.depends_on_length
        self._score(params, made, costs, "starved" if is_starved else "")

    def further(self, updates: int, costs: dict[int, Costs]) -> int:
        """Return how many updates the run needs to use up both budgets, as far as is known.

        Args:
            updates: those made.
            costs: cumulative costs by update.
        """
        plan, spent = self.plan, costs[max(costs)]
        every = plan.checkpoints.every
        needed = updates
        for name, budget in self.limits.items():
            if spent[name]:
                needed = max(needed, math.ceil(updates * budget / spent[name]))
        needed = -(-needed // every) * every
        return min(plan.most_updates, needed)

    def scored_updates(self, costs: dict[int, Costs]) -> list[int]:
        """Return the updates whose checkpoints are scored.

        The last ones within each budget are among them. Tuning scores only these.

        Args:
            costs: cumulative costs by update.
        """
        c, last = self.plan.checkpoints, max(costs)
        saved = range(c.every, last + 1, c.every)
        ends = {
            max((u for u in saved if costs[u][cost] <= limit), default=0)
            for cost, limit in self.limits.items()
        }
        if self.part == TUNE:
            return sorted(u for u in ends if u)
        early = range(c.every, min(c.dense, last) + 1, c.every)
        late = range(c.dense + c.sparse, last + 1, c.sparse)
        return sorted({u for u in {*early, *late, *ends} if u})

    def _score(
        self, params: Params, made: dict[str, Any], costs: dict[int, Costs], ended: str
    ) -> None:
        folder = self.key.folder
        evaluator = Evaluator(params.evaluation(self.task, self.key.method), params.select.split)
        updates = self.scored_updates(costs)
        adapters: list[Path | None] = [None, *(checkpoint_of(self.key, u) for u in updates)]
        protocol = params.evaluate.protocols[params.select.protocol]
        (reports,) = evaluator.reports(str(self), adapters, protocol)
        flops = self._flops(params, evaluator, costs)
        curve = [
            {"update": u, "accuracy": report["accuracy"], **costs[u], "flops": flops[u]}
            for u, report in zip([0, *updates], reports, strict=True)
        ]
        write_json(
            folder / RESULT,
            {
                "identity": self.identity,
                "fingerprint": made["fingerprint"],
                "updates": made["updates"],
                "ended": ended,
                "n": reports[0]["n"],
                "curve": curve,
            },
        )

    def _flops(
        self, params: Params, evaluator: Evaluator, costs: dict[int, Costs]
    ) -> dict[int, float]:
        """Return the estimated operations until each update, at most: see estimate.py."""
        run, method = params.run(*self.key.parts), params.of(self.key.method)
        config = read_config(Path(run.model.path))
        shape = Shape(config, lora_parameters(config, method))
        prompt = len(evaluator.prompt_of(evaluator.problems[0]))
        length = prompt + run.sampling.gen_length
        answer = shape.answer(prompt, run.algorithm.sampling_of(run.sampling))
        forwards = run.algorithm.forwards(run.sampling)
        problem = 0.0
        if forwards:
            problem = forwards.scored * shape.forward(length)
            problem += forwards.trained * shape.trained(length, is_checkpointed=False)
        update = problem * run.train.prompts_per_collect / run.algorithm.updates_of_collect
        return {u: cost["rollouts"] * answer + u * update for u, cost in costs.items()}


def checkpoint_of(key: RunKey, update: int) -> Path:
    """Return the folder of a run's checkpoint."""
    return key.folder / "train" / f"step-{update:06d}"


def costs_of(fingerprint: str) -> dict[int, Costs]:
    """Return the cumulative costs of each update, 0 included, from a run's log.

    Args:
        fingerprint: name of the run's folder in work/.
    """
    total = dict.fromkeys(COSTS[:-1], 0.0)
    costs = {0: dict(total)}
    for row in read_log(WORK / fingerprint / LOG):
        borrowed = row.get("time/borrowed_seconds", 0.0)
        total["cpu_seconds"] += row["time/cpu_seconds"] + borrowed
        total["seconds"] += row["time/update_seconds"] + borrowed
        total["rollouts"] = row["count/rollouts"]
        total["tokens"] = row["count/sampled_tokens"]
        costs[int(row["update"])] = dict(total)
    return costs
