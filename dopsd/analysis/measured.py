"""Say where scores that stand side by side were measured in different ways, and what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.percent import percent
from dopsd.models.measured_on import NONE, PACKAGES, fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dopsd.analysis.results import Finished

Records = list[dict[str, Any]]
SHOWN = 4  # names of runs in a line
COARSE = ("dtype", "quantization")
UNCHANGING = {"batch_size", "dopsd"}  # fields that hardly change an answer of the same base
ROUNDING = "it rounds differently, which can change single answers"
MEANINGS = {
    "device": "elsewhere, the same code scored 77.5 on one kind of GPU and 72.8 on another",
    **dict.fromkeys(COARSE, "coarser numbers change answers, and accuracy by several points"),
    "batch_size": "on a GPU it changes the rounding, which can change single answers",
    "dopsd": "another release may decode or score differently; its changelog says so",
    **dict.fromkeys(PACKAGES[1:], "another version may round differently"),
}


def differences(measured: Mapping[str, Records]) -> list[str]:
    """Return a line for each field in which scores were measured differently.

    Args:
        measured: the records `measured_on` by the name of what was scored.
    """
    known = {name: fields(records) for name, records in measured.items()}
    return [_line(field, known) for field in _differing(known)]


def between_sides(comparison: Mapping[str, Any]) -> list[str]:
    """Return how base and trained model of a test result were measured differently."""
    sides = {"base": "base", "best": "trained model"}
    return differences({name: comparison[side]["measured_on"] for side, name in sides.items()})


def between_runs(runs: Sequence[Finished]) -> list[str]:
    """Return how runs were measured differently: each run's base and trained model, then the runs.

    Runs of different tasks are not compared.
    """
    lines = [f"{run.name}: {text}" for run in runs for text in between_sides(run.tested)]
    for task in dict.fromkeys(run.task for run in runs):
        members = [run for run in runs if run.task == task]
        found = differences({run.name: records_of(run.tested) for run in members})
        lines += found
        bases = {percent(run.tested["base"]["accuracy"]) for run in members}
        if found and len(bases) > 1:
            lines.append(
                f"{task}: the base alone scores from {min(bases, key=float)} to"
                f" {max(bases, key=float)}: compare a run with its own base, and make sure that"
                " the base is the same"
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
    listed = "; ".join(f"{value} ({_listed(having)})" for value, having in names.items())
    meaning = MEANINGS.get(field, ROUNDING)
    return f"{field.replace('_', ' ')} differs: {listed}: {meaning}"


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
