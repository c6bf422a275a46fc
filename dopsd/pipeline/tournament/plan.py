"""The plan of a tournament: tasks, entries, rates, seeds and budgets, read from a YAML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.loading import as_lines, read_yaml
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown
from dopsd.core.settings import Count, Natural, Positive, PositiveShare, Section

if TYPE_CHECKING:
    from pathlib import Path

Knowledge = Literal["reward", "gold answer", "solution"]
Changes = dict[str, Any]
VariantName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,39}$")]


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

    name: VariantName = "tournament"  # of its folder in reports/, and in the names of its runs
    tasks: dict[str, Changes] = Field(min_length=1)  # changes of params.yaml for each task
    entries: dict[VariantName, Entry] = Field(min_length=1)
    own: str  # the entry that claims are about
    tokens: Count  # sampled tokens of a run, the first budget
    seconds: Positive  # CPU seconds of training with one thread, the second budget
    most_updates: Count = 300  # a run ends here, though a budget is left
    seeds: list[Natural] = Field([0, 1, 2], min_length=1)
    more_seeds: list[Natural] = Field([3, 4])  # of the `best` entries
    best: Natural = 4  # entries of each task that get more seeds
    gain: PositiveShare = 0.05  # accuracy above the base whose cost is reported
    tuning: Tuning = Tuning()
    checkpoints: Checkpoints = Checkpoints()
    switches: dict[VariantName, Switch] = Field({})
    switch_tasks: list[str] = Field([])  # tasks of the switches
    notes: list[str] = Field([])  # what readers must know beside the rules

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        """Check the names of methods, entries and tasks, and that no seed is used twice."""
        for name, entry in self.entries.items():
            if self.method_of(name) not in ALGORITHMS.names:
                raise ValueError(
                    unknown(f"entries.{name}.method: {self.method_of(name)}", ALGORITHMS.names)
                )
            for task in entry.on:
                if task not in self.tasks:
                    raise ValueError(unknown(f"entries.{name}.on: {task}", self.tasks))
        named = {f"switches.{name}.entry": s.entry for name, s in self.switches.items()}
        named["own"] = self.own
        for key, name in named.items():
            if name not in self.entries:
                raise ValueError(unknown(f"{key}: {name}", self.entries))
        for task in self.switch_tasks:
            if task not in self.tasks:
                raise ValueError(unknown(f"switch_tasks: {task}", self.tasks))
        seeds = [*self.seeds, *self.more_seeds, self.tuning.seed]
        if len(set(seeds)) < len(seeds):
            raise ValueError("seeds, more_seeds and tuning.seed: expected each seed once")
        return self

    @model_validator(mode="after")
    def tasks_change_nothing_shared(self) -> Self:
        """Refuse changes of what all entries must share, and the data that is prepared once."""
        fixed = {"data", "evaluate", "select"}  # what all entries share
        for task, changes in self.tasks.items():
            if wrong := sorted(fixed & set(changes)):
                raise ValueError(
                    f"tasks.{task}.{wrong[0]}: a section that all runs share; change it in"
                    " params.yaml"
                )
        return self

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
        if isinstance(value, dict) and isinstance(known, dict):
            result[key] = merged(known, value)
        else:
            result[key] = value
    return result


def read_plan(path: Path) -> Plan:
    """Read and check a plan.

    Raises:
        DopsdError: if the file is missing or wrong, with one line for each fault.
    """
    if not path.is_file():
        raise DopsdError(
            f"{path}: no such file; name the plan of a tournament with --plan: docs/tournament.md"
            " describes one",
            code=Code.PATH,
        )
    raw = read_yaml(path)
    try:
        return Plan.model_validate(raw)
    except ValidationError as error:
        raise as_lines(error, path, raw, Plan) from error
