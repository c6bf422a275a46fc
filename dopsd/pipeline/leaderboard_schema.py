"""The shape of a finished tournament's file, `reports/tournament/results.json`.

Keys that are not named here are kept out; every key that is named must have its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from typing import Self

VERSION = 1
ENOUGH_SEEDS = 5  # a claim needs so many
Budget = Literal["tokens", "seconds"]
Share = Annotated[float, Field(ge=0, le=1)]
Cost = Annotated[float, Field(ge=0)]
Ends = Annotated[list[float], Field(min_length=2, max_length=2)]
Part = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,100}$")]  # of a run's name
Seed = Annotated[int, Field(ge=0)]
SeedText = Annotated[str, Field(pattern=r"^[0-9]{1,19}$")]


class Row(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class Tuning(Row):
    """How learning rates were chosen: on one seed, with a share of the budgets."""

    seed: Seed
    rates: list[Annotated[float, Field(gt=0)]]
    share: Share


class Rules(Row):
    """The rules; `own` is the entry that claims are about."""

    tasks: dict[Part, Any] | list[Part]
    own: str = ""
    seeds: list[Seed]
    more_seeds: list[Seed] = []
    best: int
    tokens: Cost
    seconds: Cost
    gain: Share
    tuning: Tuning
    notes: list[str] = []


class Base(Row):
    """The base of a task, on both splits; None where nothing has run."""

    path: str
    digest: str
    graded: bool = False  # an answer scores the share of it that is right
    validation: Share | None = None
    validation_n: int | None = None
    test: Share | None = None
    test_n: int | None = None


class Rates(Row):
    """Validation accuracy of each learning rate that was tried, and the chosen rate."""

    tried: dict[str, Share]
    chosen: float | None = None


class Entry(Row):
    """A method with settings; `knows` and `settings` are by task."""

    method: Part
    title: str
    knowledge: str
    knows: dict[Part, str] = {}
    settings: dict[Part, dict[str, Any]] = {}
    rates: dict[Part, Rates] = {}


class Costs(Row):
    """What training had cost until a checkpoint; seconds are those of a clock on the wall."""

    update: Cost = 0
    rollouts: Cost = 0
    tokens: Cost = 0
    cpu_seconds: Cost = 0
    seconds: Cost = 0
    flops: Cost = 0


class Point(Costs):
    """A checkpoint, on validation."""

    accuracy: Share


class Chosen(Row):
    """The checkpoint with the best validation accuracy within a budget."""

    update: int
    validation: Share
    test: Share | None = None
    interval: Ends | None = None
    tokens: Cost
    cpu_seconds: Cost


class Run(Row):
    """A run; `reached` is its first checkpoint at the base's accuracy plus `gain`."""

    task: Part
    entry: Part
    seed: Seed
    folder: str
    rate: float
    settings: dict[str, str]
    command: str
    fingerprint: Annotated[str, Field(pattern=r"^[\w.:+-]{1,200}$")]
    code: str = ""
    curve: list[Point]
    chosen: dict[Budget, Chosen | None]
    reached: Costs | None = None


class Gap(Row):
    """A difference with its interval."""

    difference: float
    interval: Ends


class Standing(Row):
    """An entry on a task within a budget, as a mean over seeds; `by_seed`: on test if tested.

    `checkpoints` is how many the best was chosen from; `reached_first`: some seed's first one.
    """

    budget: Budget
    task: Part
    entry: Part
    seeds: int
    test: Share | None = None
    validation: Share
    by_seed: dict[SeedText, Share]
    over_base: Gap | None = None
    reached: Costs | None = None
    reached_by: int = 0
    reached_first: bool = False
    checkpoints: Cost = 0


class Pair(Row):
    """Two entries on a task within a budget; `interval` is the wider one of the two."""

    budget: Budget
    task: Part
    first: Part
    second: Part
    seeds: int
    difference: float
    by_seed: dict[SeedText, float]
    t: Ends | None = None
    bootstrap: Ends
    interval: Ends
    is_claim: bool

    @model_validator(mode="after")
    def _claims_have_grounds(self) -> Self:
        low, high = self.interval
        if self.is_claim and (self.seeds < ENOUGH_SEEDS or low <= 0 <= high):
            raise ValueError(
                f"is_claim with {self.seeds} seeds and the interval {self.interval}; a claim needs"
                f" {ENOUGH_SEEDS} seeds and an interval without 0"
            )
        return self


class Look(Row):
    """When checkpoints were scored on a test split, and of how many runs."""

    at: str
    task: Part
    tested: int


class Switch(Row):
    """A setting of an entry that was changed alone, with one seed."""

    task: Part
    switch: str
    entry: Part
    seed: Seed
    settings: dict[str, Any] = {}
    validation: Share | None = None
    over_default: float | None = None


class Results(Row):
    """The whole file."""

    version: int
    rules: Rules
    bases: dict[Part, Base]
    entries: dict[Part, Entry]
    runs: list[Run]
    standings: list[Standing]
    pairs: list[Pair] = []
    switches: list[Switch] = []
    warnings: list[str] = []
    answer: str = ""
    looks: list[Look] = []

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        rows: list[Run | Standing | Switch] = [*self.runs, *self.standings, *self.switches]
        for row in rows:
            self._check(row.task, row.entry)
        for pair in self.pairs:
            self._check(pair.task, pair.first, pair.second)
        return self

    def _check(self, task: str, *entries: str) -> None:
        if missing := [name for name in entries if name not in self.entries]:
            raise ValueError(f"entry {missing[0]} is not in `entries`")
        if task not in self.bases or task not in self.rules.tasks:
            raise ValueError(f"task {task} is not in `bases` and `rules.tasks`")
