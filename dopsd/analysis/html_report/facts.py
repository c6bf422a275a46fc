"""What a run's report shows, as plain values that `dopsd.pipeline.results.run_report` gathers."""

from dataclasses import dataclass
from typing import Any

from dopsd.algorithms.registry import label
from dopsd.analysis.results import Finished
from dopsd.analysis.tables import named, names_of
from dopsd.core.paths import RunKey


@dataclass(frozen=True)
class Description:
    """What was run, in words and numbers.

    Attributes:
        task: the task in words.
        is_graded: whether answers get partial scores.
        problems: number of problems of each split.
        method: the method in words: what its settings make of it.
        base: folder of the base model.
        parameters: parameters of the base.
        trained: parameters that training changes: of the adapter, or all.
        solutions: different solutions of the test problems of a graded task, where problems share
            them; else 0.
        start: folder of the checkpoint that training started from; empty: the base.
        variant: name of the method that the settings are; empty: that of the algorithm.
    """

    task: str
    is_graded: bool
    problems: dict[str, int]
    method: str
    base: str
    parameters: int
    trained: int
    solutions: int = 0
    start: str = ""
    variant: str = ""


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        values: each setting by dotted key, as recorded in training.
        planned_updates: updates after which the run was to end.
        profile: the profile that is nearest to params.yaml, with its options; empty if params.yaml
            no longer has this run's settings.
        differences: keys with the run's value and the profile's.
        commands: the commands that repeat the run.
        files: key, path and SHA-256 of the local files that the task's section names.
        is_of_other_base: whether the embedded base of the profile cannot serve the run.
        stale: why the run is not one of params.yaml and this code; empty if it is.
    """

    values: dict[str, str]
    planned_updates: int | None
    profile: str
    differences: list[tuple[str, str, str]]
    commands: list[str]
    files: list[tuple[str, str, str]]
    is_of_other_base: bool
    stale: str


@dataclass(frozen=True)
class RunFacts:
    """All that a run's report shows.

    Attributes:
        key: task, method and seed.
        description: what was run.
        settings: its settings.
        tested: contents of test/paired.json.
        curve: rows of curve.csv.
        training: rows of train.csv.
        costs: cumulative costs by update.
        totals: counters at the end of training.
        trajectory: contents of trajectory.json.
        answers: answers drawn at random; None for runs tested before they were kept.
        machine: the machines that trained the run; none for a run from DVC's cache.
        digests: digests of data, code and weights, by name.
        metrics: unit and meaning of each metric of train.csv.
    """

    key: RunKey
    description: Description
    settings: Settings
    tested: dict[str, Any]
    curve: list[dict[str, Any]]
    training: list[dict[str, Any]]
    costs: dict[int, dict[str, float]]
    totals: dict[str, Any]
    trajectory: dict[str, Any]
    answers: list[dict[str, Any]] | None
    machine: list[dict[str, Any]]
    digests: dict[str, str]
    metrics: dict[str, tuple[str, str]]

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
    """All that a comparison's report shows.

    Attributes:
        runs: the runs.
        tables: rows of `dopsd.pipeline.results.comparison.values`.
        settings: by task, each setting that differs between methods, with its value by method.
        warnings: how runs were measured in different ways.
        measured_on: what measured each run, in words, by run.
        stale: why runs are not those of params.yaml and this code, by run.
        links: address of each run's own report, by run.
        bases: the folder of each task's base.
        baseline: the method whose best accuracy the others have to reach.
        graded: tasks that give partial scores.
    """

    runs: list[Finished]
    tables: dict[str, list[dict[str, Any]]]
    settings: dict[str, dict[str, dict[str, str]]]
    warnings: list[str]
    measured_on: dict[str, str]
    stale: dict[str, str]
    links: dict[str, str]
    bases: dict[str, str]
    baseline: str
    graded: list[str]

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
        return named(self.tables, self.runs)

    @property
    def name_of_baseline(self) -> str:
        """The name of the baseline."""
        names = (name for (_, method), name in self.names.items() if method == self.baseline)
        return next(names, self.baseline)
