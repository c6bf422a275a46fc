"""Sentences of a comparison: which method is better, and how sure that is."""

from __future__ import annotations

from statistics import stdev
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.paired import excludes_zero
from dopsd.analysis.html_report.words import count
from dopsd.core.percent import percent, points

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ENOUGH_SEEDS = 5
SPREAD = 1.5  # standard errors over problems; seeds that differ more than this differ by themselves
RULE = (
    "The rule: “cannot tell” if the 95% interval of the paired difference includes 0, or with one"
    f" seed; “sure” if it excludes 0, at least {ENOUGH_SEEDS} seeds were run and all of them point"
    " the same way; “weakly sure” if it excludes 0, but with fewer seeds or with seeds that"
    " disagree."
)


def certainty(interval: Sequence[float], by_seed: Sequence[float]) -> str:
    """Return how sure a comparison is: sure, weakly sure or cannot tell. RULE has the rule."""
    if not excludes_zero(interval) or len(by_seed) == 1:
        return "cannot tell"
    is_one_way = all(value > 0 for value in by_seed) or all(value < 0 for value in by_seed)
    return "sure" if is_one_way and len(by_seed) >= ENOUGH_SEEDS else "weakly sure"


def verdict(pair: dict[str, Any], is_graded: bool = False) -> str:
    """Return which of two methods is better, and how sure that is.

    Args:
        pair: task, first, second, difference, interval, and by_seed: the differences of each seed.
        is_graded: whether the accuracy is a mean of partial scores.
    """
    first, second, difference = pair["first"], pair["second"], pair["difference"]
    interval, seeds = pair["interval"], count(len(pair["by_seed"]), "seed")
    certain = certainty(interval, pair["by_seed"])
    if certain == "cannot tell":
        reason = (
            "one seed cannot show what other seeds would give"
            if excludes_zero(interval)
            else "the interval includes 0"
        )
        return (
            f"{pair['task']}: cannot tell whether {first} or {second} is better. {first} minus"
            f" {second} is {points(difference, interval)} over {seeds}; {reason}."
        )
    if difference < 0:
        first, second, difference = second, first, -difference
        interval = [-interval[1], -interval[0]]
    return (
        f"{pair['task']}: {first} is better than {second}, by {points(difference, interval)}"
        f"{' of mean score' if is_graded else ''} over {seeds} ({certain})."
    )


def seed_spread(pair: dict[str, Any]) -> str:
    """Return a warning where seeds differ more than their problems explain; else nothing.

    Args:
        pair: as for `verdict`, with problem_error, the standard error of a seed over problems.
    """
    spread = stdev(pair["by_seed"]) if len(pair["by_seed"]) > 1 else 0.0
    if spread <= SPREAD * pair["problem_error"]:
        return ""
    return (
        f"{pair['task']}: the differences between {pair['first']} and {pair['second']} vary by"
        f" {percent(spread)} points from seed to seed (standard deviation), more than the choice of"
        f" problems explains in one seed (standard error {percent(pair['problem_error'])}). The"
        f" interval is then too narrow with few seeds, and {len(pair['by_seed'])} seeds point the"
        f" same way by chance one time in {2 ** (len(pair['by_seed']) - 1)}: run more seeds."
    )


def verdicts(
    means: Sequence[dict[str, Any]],
    pairs: Sequence[dict[str, Any]],
    graded: Collection[str] = (),
) -> list[str]:
    """Return the sentences of a comparison on each task with several methods.

    Args:
        means: rows of the table `means`.
        pairs: pairs of methods of all tasks, as for `verdict`.
        graded: tasks with partial scores.
    """
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in means:
        by_task.setdefault(row["task"], []).append(row)
    sentences = []
    for task, rows in by_task.items():
        best = max(rows, key=lambda row: row["trained"][0])["method"]
        of_task = [pair for pair in pairs if pair["task"] == task]
        sentences += overview(task, best, of_task, task in graded) if len(rows) > 1 else []
    return sentences


def overview(
    task: str, best: str, pairs: Sequence[dict[str, Any]], is_graded: bool = False
) -> list[str]:
    """Return what a comparison says of a task with several methods.

    Args:
        task: the task.
        best: its method with the highest mean accuracy.
        pairs: its pairs of methods that share a seed, as for `verdict`.
        is_graded: whether the task has partial scores.
    """
    if not pairs:
        return [
            f"{task}: no two methods share a seed, so there is nothing to compare. The tables show"
            " each method against the base."
        ]
    decisive = [pair for pair in pairs if best in (pair["first"], pair["second"])]
    alone = (
        f"{task}: {best} has the highest accuracy and shares no seed with another method, so no"
        " pair shows how it compares."
    )
    return [
        *([] if decisive else [alone]),
        *(verdict(pair, is_graded) for pair in decisive or pairs),
    ]
