"""Sentences of a comparison on what methods train and what they start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.analysis.html_report.words import count
from dopsd.analysis.tables import groups, mean_cost, names_of

if TYPE_CHECKING:
    from dopsd.analysis.results import Finished

Settings = dict[str, dict[str, dict[str, str]]]  # by task, key and method
COSTS = {"updates": "update", "rollouts": "rollout", "seconds": "second"}


def starts(runs: list[Finished]) -> list[tuple[str, list[str]]]:
    """Return the methods that started from checkpoints, with the folders of these."""
    found = [
        (names_of(runs)[key], list(dict.fromkeys(run.start.folder for run in group if run.start)))
        for key, group in groups(runs).items()
    ]
    return [(name, folders) for name, folders in found if folders]


def of_starts(runs: list[Finished]) -> list[str]:
    """Return for each method that started from checkpoints what that means for its results."""
    names = names_of(runs)
    return [
        text
        for (task, method), group in groups(runs).items()
        if (text := _of_start(task, names[task, method], group))
    ]


def _of_start(task: str, name: str, group: list[Finished]) -> str:
    found = [start for run in group if (start := run.start)]
    if not found:
        return ""
    listed = ", ".join(f"`{folder}`" for folder in dict.fromkeys(s.folder for s in found))
    some = "" if len(found) == len(group) else f" in {len(found)} of {len(group)} runs"
    known = [start.costs for start in found if start.costs]
    costs = ", which are not known here"
    if len(known) == len(found):
        mean = mean_cost(known)
        parts = [count(round(mean[cost]), noun) for cost, noun in COSTS.items() if cost in mean]
        costs = f":{' on average' if len(found) > 1 else ''} {', '.join(parts)}"
    return (
        f"{task}: {name} did not start from the base{some}, but from {listed}. Its difference to"
        " the base is that of both trainings together, and its costs here leave out those of the"
        f" start{costs}."
    )


def of_weights(runs: list[Finished], settings: Settings) -> list[str]:
    """Return for each task which methods train all weights, where others train an adapter."""
    names = names_of(runs)
    texts = []
    for task, rows in settings.items():
        cells = rows.get("train.weights", {})
        sides = {
            value: ", ".join(names[task, m] for m, cell in cells.items() if cell == value)
            for value in ("all", "lora")
        }
        if all(sides.values()):
            texts.append(
                f"{task}: all weights train in {sides['all']} (`train.weights: all`), an adapter in"
                f" {sides['lora']} (`lora`). A difference between them may come from that."
            )
    return texts
