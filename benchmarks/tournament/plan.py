"""The plan of a tournament: tasks, entries, rates, seeds and budgets, read from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.loading import read_yaml
from dopsd.core.errors import unknown
from dopsd.core.settings import Count, Natural, Positive, PositiveShare, Section

Knowledge = Literal["reward", "gold answer", "solution"]
Changes = dict[str, Any]
PlainName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,39}$")]


class OnTask(Section):
    """What an entry changes on one task."""

    settings: Changes = Field({})  # changes of the method's section
    knows: Knowledge | None = None  # in place of the entry's


class Entry(Section):
    """A method with settings, which takes part under a name."""

    method: str = ""  # section of params.yaml; empty: the entry's name
    title: str = ""  # in tables; empty: the entry's name
    knows: Knowledge  # what the method is told of a training problem beyond its text
    settings: Changes = Field({})  # changes of the method's section, `train` included
    on: dict[str, OnTask] = Field({})  # further changes, by task


class Switch(Section):
    """One more change of an entry, which gets one run a task and no claim."""

    entry: str
    settings: Changes


class Tuning(Section):
    """How the learning rate of each entry is chosen: short runs, validation alone."""

    rates: list[Positive] = Field([3.0e-4, 1.0e-3, 3.0e-3], min_length=1)
    seed: Natural = 100  # of the tuning runs; not one of the seeds that count
    share: PositiveShare = 0.5  # of the budgets


class Checkpoints(Section):
    """Which checkpoints are scored on validation."""

    every: Count = 5  # updates
    dense: Count = 50  # up to this update
    sparse: Count = 25  # updates between them after it


class Plan(Section):
    """A tournament's rules."""

    name: PlainName = "tournament"  # of its folder in reports/, and in the names of its runs
    tasks: list[str] = Field(min_length=1)
    entries: dict[PlainName, Entry] = Field(min_length=1)
    own: str  # the entry that claims are about
    tokens: Count  # sampled tokens of a run, the first budget
    seconds: Positive | None = None  # CPU seconds of training, one thread; null: tokens alone
    most_updates: Count = 300  # a run ends here, though a budget is left
    seeds: list[Natural] = Field([0, 1, 2], min_length=1)
    more_seeds: list[Natural] = Field([3, 4])  # of the `best` entries
    best: Natural = 4  # entries of each task that get more seeds
    gain: PositiveShare = 0.05  # accuracy above the base whose cost is reported
    tuning: Tuning = Tuning()
    checkpoints: Checkpoints = Checkpoints()
    used: Natural = 0  # first problems of each test split that were tested before: not scored
    curve: list[float] = Field([])  # of the test, as evaluate.curve: accuracy with fewer steps
    switches: dict[PlainName, Switch] = Field({})
    switch_tasks: list[str] = Field([])  # tasks of the switches
    notes: list[str] = Field([])  # what readers of the results must know beside the rules

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        """Check the names of methods, entries and tasks, and that no seed is used twice."""
        named = [(f"entries.{e}", self.method_of(e), ALGORITHMS.names) for e in self.entries]
        named += [(f"switches.{s}", self.switches[s].entry, self.entries) for s in self.switches]
        named += [("own", self.own, self.entries)]
        named += [
            (f"entries.{e}.on", t, self.tasks) for e in self.entries for t in self.entries[e].on
        ]
        named += [("switch_tasks", task, self.tasks) for task in self.switch_tasks]
        for key, name, known in named:
            if name not in known:
                raise ValueError(unknown(f"{key}: {name}", known))
        seeds = [*self.seeds, *self.more_seeds, self.tuning.seed]
        if len(set(seeds)) < len(seeds):
            raise ValueError("seeds, more_seeds and tuning.seed: expected each seed once")
        return self

    @property
    def budgets(self) -> dict[str, str]:
        """The cost that each budget limits, by the budget's name."""
        return {"tokens": "tokens"} | ({"seconds": "cpu_seconds"} if self.seconds else {})

    def method_of(self, entry: str) -> str:
        """Return the section of params.yaml that an entry changes."""
        return self.entries[entry].method or entry

    def title_of(self, entry: str) -> str:
        """Return the name of an entry in tables."""
        return self.entries[entry].title or entry

    def knows(self, entry: str, task: str) -> Knowledge:
        """Return what an entry is told of a task's training problems beyond their text."""
        on_task = self.entries[entry].on.get(task)
        return (on_task and on_task.knows) or self.entries[entry].knows

    def settings_of(self, entry: str, task: str) -> Changes:
        """Return the changes of an entry's section on a task."""
        on_task = self.entries[entry].on.get(task, OnTask())
        return merged(self.entries[entry].settings, on_task.settings)


def merged(settings: Changes, changes: Changes) -> Changes:
    """Return settings with changes applied; sections are merged, other values replaced."""
    result = dict(settings)
    for key, value in changes.items():
        known = result.get(key)
        is_section = isinstance(value, dict) and isinstance(known, dict)
        result[key] = merged(known, value) if is_section else value
    return result


def read_plan(path: Path) -> Plan:
    """Read and check a plan."""
    return Plan.model_validate(read_yaml(path))
