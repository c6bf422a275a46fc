"""Read a finished run from runs/: its test results, its accuracy curve and its cost."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dopsd.algorithms.registry import label
from dopsd.core.errors import DopsdError
from dopsd.core.files import WORK, read_json
from dopsd.core.fingerprint import key_from, sha256
from dopsd.core.metrics import COUNTED
from dopsd.core.paths import LOG, RunKey
from dopsd.core.statistics import bootstrap, percent
from dopsd.core.tables import read_log, read_table
from dopsd.evaluation.curve import curve_of
from dopsd.evaluation.speed import areas_by_problem
from dopsd.models.adapter_files import identity
from dopsd.models.backends import NONE, PACKAGES, fields
from dopsd.training.start import RUN

STEP = "step-"  # begins the name of a checkpoint's folder
COSTS = {"updates": "updates", "rollouts": "rollouts", "seconds": "training time (s)"}  # x axes


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run started from."""

    folder: str  # its folder
    # what it had cost, with what it started from itself; None if that is not known
    costs: dict[str, float] | None


@dataclass(frozen=True)
class Finished(RunKey):
    """A run whose stages have finished, read from runs/."""

    variant: str = ""  # name of the method that its settings are, if not the algorithm's: GDSD

    @property
    def name(self) -> str:
        """The run in sentences and tables: `sudoku/espo/0 (GDSD)`."""
        return label(str(self), self.variant)

    @property
    def tested(self) -> dict[str, Any]:
        """Test reports `base` and `best` under select.protocol, and their difference `paired`."""
        results = read_json(self.folder / "test" / "paired.json", "dopsd test")
        tested: dict[str, Any] = results["protocols"][results["selected"]["protocol"]]
        return tested

    @property
    def speed(self) -> dict[str, Any]:
        """The area of each problem, and steps and accuracy by point, for `base` and `best`.

        Empty without points of fewer steps (`evaluate.curve`).
        """
        results = read_json(self.folder / "test" / "paired.json", "dopsd test")
        name, found = results["selected"]["protocol"], {}
        for side in ("base", "best"):
            reports = {n: pair[side] for n, pair in results["protocols"].items()}
            reports = {n: r for n, r in reports.items() if n == name or n.startswith(f"{name}-")}
            if areas := areas_by_problem(reports, name):
                points = {n: (r["steps"], r["accuracy"]) for n, r in reports.items()}
                found[side] = {"per_problem": areas, "points": points}
        return found

    @property
    def base_files(self) -> str:
        """Digest of the base that was tested."""
        digest: str = read_json(self.folder / "test" / "paired.json", "dopsd test")["base_files"]
        return digest

    @property
    def selected(self) -> dict[str, Any]:
        """The selected checkpoint: its update, split, protocol, accuracy and digest."""
        selection: dict[str, Any] = read_json(self.folder / "best" / "select.json", "dopsd select")
        return selection

    @property
    def start(self) -> Start | None:
        """The checkpoint that the run started from; None: the base."""
        made = read_json(self.folder / "train.json", "dopsd train")
        if "started_from" not in made:
            return None
        folder = Path(made["started_from"])
        costs = None
        with suppress(DopsdError):  # results of that run are not here
            costs = _cost_of_start(folder, made["start"])
        return Start(made["started_from"], costs)

    def costs(self) -> dict[int, dict[str, float]]:
        """Return the cumulative cost of each update.

        Counts are from the run's table. Seconds are from its log, which a run from DVC's cache
        lacks; they include work that another run did for this one (d3LLM's recordings).

        Returns:
            By update, 0 included: `updates`, the counts of COUNTED, and if known `seconds`.
        """
        log_file = WORK / read_json(self.folder / "train.json", "dopsd train")["fingerprint"] / LOG
        elapsed: dict[int, float] = {}
        for row in read_log(log_file) if log_file.is_file() else []:
            seconds = row["time/update_seconds"] + row.get("time/borrowed_seconds", 0.0)
            elapsed[int(row["update"])] = seconds + max(elapsed.values(), default=0.0)
        costs = {0: dict.fromkeys([*COUNTED, "updates"] + ["seconds"] * bool(elapsed), 0.0)}
        for row in read_table(self.folder / "train.csv"):
            update = int(row["update"])
            cost = {"updates": row["update"], **{name: row[f"count/{name}"] for name in COUNTED}}
            costs[update] = cost | ({"seconds": elapsed[update]} if update in elapsed else {})
        return costs

    @property
    def is_raced(self) -> bool:
        """Whether a race chose which checkpoints were scored exactly (`select.race`)."""
        return "raced" in self.selected

    def points(self) -> list[tuple[int, float]]:
        """Return update and accuracy of each checkpoint on the selection split and protocol.

        Update 0 is the base, or the checkpoint that the run started from.
        """
        rows = curve_of(self.folder)
        return [
            (row["update"], row["accuracy"])
            for row in rows
            if row["protocol"] == self.selected["protocol"]
        ]

    def curve(self, cost: str) -> list[tuple[float, float]]:
        """Return cost and accuracy of each checkpoint on the selection split."""
        costs = self.costs()
        return [
            (costs[update][cost], accuracy)
            for update, accuracy in self.points()
            if cost in costs.get(update, {})
        ]


def _cost_of_start(folder: Path, digest: str) -> dict[str, float] | None:
    """Return what a run's checkpoint had cost; None if it has other weights, or is of no run."""
    parts, weights = RUN.fullmatch(folder.as_posix()), identity(folder)
    if not parts or not weights.is_file() or sha256(weights) != digest:
        return None
    run, step = Finished(parts[1], parts[2], int(parts[3])), folder.name.removeprefix(STEP)
    costs = run.costs().get(int(step) if step.isdecimal() else run.selected["update"])
    if costs is None or run.start is None:
        return costs
    before = run.start.costs
    return before and {name: costs[name] + before[name] for name in costs if name in before}


def paired_over_seeds(
    gaps: Sequence[Sequence[float]], resamples: int
) -> tuple[float, tuple[float, float]]:
    """Return the mean of paired differences and its 95% bootstrap interval over seeds and problems.

    Resampling problems alone would describe these runs, not the methods. With few seeds the
    interval is too narrow: if seeds differ more than problems do, the interval of three seeds is
    the range of three values, which misses the mean one time in four.

    Args:
        gaps: differences, [seed, problem].
    """
    import numpy

    values = numpy.asarray(gaps)
    seeds, problems = values.shape
    if seeds == 1:
        return float(values.mean()), bootstrap(values[0], resamples)
    draw = numpy.random.default_rng(key_from("bootstrap", seeds, problems) & 0xFFFFFFFF)
    of_seeds = draw.multinomial(seeds, [1 / seeds] * seeds, resamples)
    of_problems = draw.multinomial(problems, [1 / problems] * problems, resamples)
    means = numpy.einsum("rs,sp,rp->r", of_seeds, values, of_problems, optimize=True) / values.size
    low, high = numpy.quantile(means, [0.025, 0.975])
    return float(values.mean()), (float(low), float(high))


Records = list[dict[str, Any]]
SHOWN = 4  # names of runs in a line
COARSE = ("dtype", "quantization")
UNCHANGING = {"batch_size", "dopsd"}  # fields that hardly change an answer of the same base
ROUNDING = "Another value rounds differently, which can change single answers"
MEANINGS = {
    "device": "Elsewhere, the same code scored 77.5 on one kind of GPU and 72.8 on another",
    **dict.fromkeys(COARSE, "Coarser numbers change answers, and accuracy by several points"),
    "batch_size": "On a GPU this changes the rounding, which can change single answers",
    "dopsd": "Another release may decode or score differently. Its changelog says so",
    **dict.fromkeys(PACKAGES[1:], "Another version may round differently"),
}


def differing_keys(measured: Mapping[str, Records]) -> list[str]:
    """Return a line for each field in which scores were measured differently."""
    known = {name: fields(records) for name, records in measured.items()}
    return [_line(field, known) for field in _differing(known)]


def between_sides(comparison: Mapping[str, Any]) -> list[str]:
    """Return how base and trained model of a test result were measured differently."""
    sides = {"base": "base", "best": "trained model"}
    return differing_keys({name: comparison[side]["measured_on"] for side, name in sides.items()})


def between_runs(runs: Sequence[Finished]) -> list[str]:
    """Return how runs were measured differently: each run's base and trained model, then the runs.

    Runs of different tasks are not compared.
    """
    lines = [f"{run.name}: {text}" for run in runs for text in between_sides(run.tested)]
    for task in dict.fromkeys(run.task for run in runs):
        members = [run for run in runs if run.task == task]
        found = differing_keys({run.name: records_of(run.tested) for run in members})
        lines += found
        bases = {percent(run.tested["base"]["accuracy"]) for run in members}
        if found and len(bases) > 1:
            lines.append(
                f"{task}: the base alone scores from {min(bases, key=float)} to"
                f" {max(bases, key=float)}. Compare a run with its own base, and make sure that"
                " the base is the same."
            )
    return lines


def rounds_differently(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether the same model may answer differently in two reports.

    With another dtype or quantization it is another model. Another batch size or release of dopsd
    alone is no reason: the bases may then be two.
    """
    a, b = (fields(report["measured_on"]) for report in (first, second))
    differing = {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
    return bool(differing - UNCHANGING) and not differing & set(COARSE)


def records_of(comparison: Mapping[str, Any]) -> Records:
    """Return what measured base and trained model of a test result."""
    return [record for side in ("base", "best") for record in comparison[side]["measured_on"]]


def _differing(known: Mapping[str, dict[str, str]]) -> list[str]:
    names = dict.fromkeys(name for values in known.values() for name in values)
    return [
        name for name in names if len({values.get(name, NONE) for values in known.values()}) > 1
    ]


def _line(field: str, known: Mapping[str, dict[str, str]]) -> str:
    """Return one line: the field, each value with those that have it, and what it can mean."""
    names: dict[str, list[str]] = {}
    for name, values in known.items():
        names.setdefault(values.get(field, NONE), []).append(name)
    listed = ", but ".join(f"{value} in {_listed(having)}" for value, having in names.items())
    meaning = MEANINGS.get(field, ROUNDING)
    return f"{field.replace('_', ' ')} differs: {listed}. {meaning}."


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
