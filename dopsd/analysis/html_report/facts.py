"""What a run's report shows, as plain values that `dopsd.pipeline.results.run_report` gathers."""

from dataclasses import dataclass
from typing import Any

from dopsd.algorithms.registry import label
from dopsd.analysis.results import Finished
from dopsd.analysis.tables import names_of, titled
from dopsd.core.paths import RunKey


@dataclass(frozen=True)
class Description:
    """What was run, in words and numbers."""

    task: str  # the task in words
    is_graded: bool  # whether answers get partial scores
    problems: dict[str, int]  # number of problems of each split
    method: str  # the method in words: what its settings make of it
    base: str  # folder of the base model
    parameters: int  # parameters of the base
    trained: int  # parameters that training changes: of the adapter, or all
    # different solutions of the test problems of a graded task, where problems share them; else 0
    solutions: int = 0
    start: str = ""  # folder of the checkpoint that training started from; empty: the base
    variant: str = ""  # name of the method that the settings are; empty: that of the algorithm


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    values: dict[str, str]  # each setting by dotted key, as recorded in training
    planned_updates: int | None  # updates after which the run was to end
    # the profile that is nearest to params.yaml, with its options; empty if params.yaml no longer
    # has this run's settings
    profile: str
    differences: list[tuple[str, str, str]]  # keys with the run's value and the profile's
    commands: list[str]  # the commands that repeat the run
    # key, path and SHA-256 of the local files that the task's section names
    files: list[tuple[str, str, str]]
    is_of_other_base: bool  # whether the embedded base of the profile cannot serve the run
    stale: str  # why the run is not one of params.yaml and this code; empty if it is


@dataclass(frozen=True)
class RunFacts:
    """All that a run's report shows."""

    key: RunKey  # task, method and seed
    description: Description  # what was run
    settings: Settings  # its settings
    tested: dict[str, Any]  # contents of test/paired.json
    curve: list[dict[str, Any]]  # rows of curve.csv
    training: list[dict[str, Any]]  # rows of train.csv
    costs: dict[int, dict[str, float]]  # cumulative costs by update
    totals: dict[str, Any]  # counters at the end of training
    trajectory: dict[str, Any]  # contents of trajectory.json
    # answers drawn at random; None for runs tested before they were kept
    answers: list[dict[str, Any]] | None
    # the machines that trained the run; none for a run from DVC's cache
    machine: list[dict[str, Any]]
    digests: dict[str, str]  # digests of data, code and weights, by name
    metrics: dict[str, tuple[str, str]]  # unit and meaning of each metric of train.csv

    @property
    def method(self) -> str:
        """Name of the method, with the variant that its settings are."""
        return label(self.key.method, self.description.variant)

    def of_method(self, name: str) -> str | None:
        """Return a setting of the run's method as text; None if the method does not have it."""
        values = (v for key, v in self.settings.values.items() if key.partition(".")[2] == name)
        return next(values, None)

    @property
    def selected(self) -> dict[str, Any]:
        """The selected checkpoint."""
        selection: dict[str, Any] = self.tested["selected"]
        return selection

    @property
    def comparison(self) -> dict[str, Any]:
        """The test results under the protocol that selected the checkpoint."""
        comparison: dict[str, Any] = self.tested["protocols"][self.selected["protocol"]]
        return comparison


@dataclass(frozen=True)
class ComparisonFacts:
    """All that a comparison's report shows."""

    runs: list[Finished]  # the runs
    tables: dict[str, list[dict[str, Any]]]  # rows of `dopsd.pipeline.results.comparison.values`
    # by task, each setting that differs between methods, with its value by method
    settings: dict[str, dict[str, dict[str, str]]]
    warnings: list[str]  # how runs were measured in different ways
    measured_on: dict[str, str]  # what measured each run, in words, by run
    stale: dict[str, str]  # why runs are not those of params.yaml and this code, by run
    links: dict[str, str]  # address of each run's own report, by run
    bases: dict[str, str]  # the folder of each task's base
    baseline: str  # the method whose best accuracy the others have to reach
    graded: list[str]  # tasks that give partial scores

    @property
    def names(self) -> dict[tuple[str, str], str]:
        """The name of each method with its variant, by task and method."""
        return names_of(self.runs)

    def names_in(self, task: str) -> dict[str, str]:
        """Return the names of a task's methods."""
        return {method: name for (t, method), name in self.names.items() if t == task}

    @property
    def named_tables(self) -> dict[str, list[dict[str, Any]]]:
        """The tables, in which methods have their names."""
        return titled(self.tables, self.runs)

    @property
    def name_of_baseline(self) -> str:
        """The name of the baseline."""
        names = (name for (_, method), name in self.names.items() if method == self.baseline)
        return next(names, self.baseline)
