"""What the comparison page says: verdicts, what limits them, and where runs start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report import words
from dopsd.analysis.html_report.paired import excludes_zero
from dopsd.analysis.html_report.words import counted
from dopsd.analysis.results import Finished
from dopsd.analysis.tables import RESAMPLED, groups, mean_cost, names_of
from dopsd.core.statistics import percent, points

if TYPE_CHECKING:
    from dopsd.analysis.html_report.facts import ComparisonFacts

ENOUGH_SEEDS = 5
SPREAD = 1.5  # standard errors over problems; seeds that differ more than this differ by themselves
RULE = (
    "The rule: “cannot tell” if the 95% interval of the paired difference includes 0, or with one"
    f" seed. “Sure” if the interval excludes 0 and at least {ENOUGH_SEEDS} seeds all point the same"
    " way. “Weakly sure” if the interval excludes 0 with fewer seeds, or with seeds that disagree."
)


def certainty_text(interval: Sequence[float], by_seed: Sequence[float]) -> str:
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
    interval, seeds = pair["interval"], counted(len(pair["by_seed"]), "seed")
    certain = certainty_text(interval, pair["by_seed"])
    if certain == "cannot tell":
        reason = "The interval includes 0"
        if excludes_zero(interval):
            reason = "One seed cannot show what other seeds would give"
        return (
            f"{pair['task']}: cannot tell whether {first} or {second} is better. {first} minus"
            f" {second} is {points(difference, interval)} over {seeds}. {reason}."
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
        f"{pair['task']}: from seed to seed the difference between {pair['first']} and"
        f" {pair['second']} varies by a standard deviation of {percent(spread)} points. The choice"
        " of problems explains less: in one seed a standard error of"
        f" {percent(pair['problem_error'])} points. With few seeds the interval is then too narrow."
        f" By chance, {len(pair['by_seed'])} seeds point the same way one time in"
        f" {2 ** (len(pair['by_seed']) - 1)}. Run more seeds."
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
    """
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in means:
        by_task.setdefault(row["task"], []).append(row)
    sentences = []
    for task, rows in by_task.items():
        best = max(rows, key=lambda row: row["trained"][0])["method"]
        of_task = [pair for pair in pairs if pair["task"] == task]
        sentences += _overview(task, best, of_task, task in graded) if len(rows) > 1 else []
    return sentences


def _overview(
    task: str, best: str, pairs: Sequence[dict[str, Any]], is_graded: bool = False
) -> list[str]:
    """Return what a comparison says of a task with several methods.

    Args:
        best: its method with the highest mean accuracy.
        pairs: its pairs of methods that share a seed, as for `verdict`.
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


ABSENT = "–"  # value of a setting that a method does not have


def of_these_runs(facts: ComparisonFacts) -> list[str]:
    """Return what limits the conclusions from these runs in particular."""
    spread = filter(None, map(seed_spread, facts.named_tables["pairs"]))
    weights = of_weights(facts.runs, facts.settings)
    return [
        *weights,
        *of_starts(facts.runs),
        *spread,
        *_unequal_effort(facts),
        *_fewer_full_marks(facts),
    ]


def of_all(facts: ComparisonFacts) -> list[str]:
    """Return what limits the conclusions of comparisons with as many seeds."""
    seeds = min(row["seeds"] for row in facts.tables["means"])
    on_test = [run.name for run in facts.runs if run.selected["split"] == "test"]
    texts = [RESAMPLED]
    if seeds < ENOUGH_SEEDS:
        more = list(range(ENOUGH_SEEDS))
        texts.insert(
            0,
            f"Only {words.counted(seeds, 'seed')} can be compared. Other seeds may give other"
            f" values. {ENOUGH_SEEDS} seeds or more are better:"
            f" `dopsd params --set 'matrix.seeds={more}'` and `dopsd repro`, which keeps finished"
            " runs.",
        )
    if on_test:
        texts.append(
            f"The test set itself selected the checkpoint of {', '.join(on_test)}. Such a test"
            " accuracy is too high."
        )
    return [
        *texts,
        "Seconds count all that a machine did in that time. Compare them only between runs on the"
        " same device without other work.",
        "Each further choice between methods on the same test problems makes the best method look"
        " better than it is.",
    ]


def lengths(facts: ComparisonFacts) -> str:
    """Return how long runs were in all; costs in the tables end at the selected checkpoint."""
    ends = dict.fromkeys((*map(words.grouped, _end(run)),) for run in facts.runs)
    texts = [f"{updates} updates with {rollouts} rollouts" for updates, rollouts in ends]
    return " or ".join(texts)


def full_marks(facts: ComparisonFacts, task: str, method: str) -> tuple[float, float]:
    """Return the shares of answers with full marks, of the base and trained: means over seeds."""
    sides = [run.tested for run in facts.runs if (run.task, run.method) == (task, method)]
    before, after = (fmean(tested[side]["whole"] for tested in sides) for side in ("base", "best"))
    return before, after


def _end(run: Finished) -> tuple[int, float | None]:
    """Return the last update and the rollouts until then."""
    last = run.points()[-1][0]
    return last, run.costs().get(last, {}).get("rollouts")


def _unequal_effort(facts: ComparisonFacts) -> list[str]:
    """Return which methods were still rising at their end, and which shared settings differ."""
    texts = [
        f"{task}: the methods differ in {', '.join(f'`{key}`' for key in shared)}. A method whose"
        " settings were tuned longer has an advantage."
        for task, rows in facts.settings.items()
        if (shared := [key for key, cells in rows.items() if ABSENT not in cells.values()])
    ]
    rising = {}
    for row in facts.tables["means"]:
        key = row["task"], row["method"]
        ends = [
            run.selected["update"] == run.points()[-1][0]
            for run in facts.runs
            if (run.task, run.method) == key
        ]
        rising[f"{row['task']}/{facts.names[key]}"] = sum(ends), len(ends)
    if any(last for last, _ in rising.values()):
        shares = ", ".join(
            f"{last} of {runs} runs of {name}" for name, (last, runs) in rising.items()
        )
        texts.insert(
            0,
            f"Best at their last checkpoint: {shares}. More updates"
            " (`train.updates`) may raise these. A method with more such runs than another is at a"
            " disadvantage.",
        )
    return texts


def _fewer_full_marks(facts: ComparisonFacts) -> list[str]:
    """Return of which methods the mean score rises while fewer answers get full marks."""
    texts = []
    for row in facts.tables["means"]:
        before, after = full_marks(facts, row["task"], row["method"])
        if row["difference"][0] > 0 and after < before:
            name = facts.names[row["task"], row["method"]]
            texts.append(
                f"{row['task']}: with {name} the mean score rises, but fewer answers get full"
                f" marks. These are {percent(after)}% of its answers, and {percent(before)}% of the"
                " base's."
            )
    return texts


Settings = dict[str, dict[str, dict[str, str]]]  # by task, key and method
COSTS = {"updates": "update", "rollouts": "rollout", "seconds": "second"}


def starts_text(runs: list[Finished]) -> list[tuple[str, list[str]]]:
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
        parts = [counted(round(mean[cost]), noun) for cost, noun in COSTS.items() if cost in mean]
        costs = f":{' on average' if len(found) > 1 else ''} {', '.join(parts)}"
    return (
        f"{task}: {name} did not start from the base{some}, but from {listed}. Its difference to"
        " the base is that of both trainings together. Its costs here leave out those of the"
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
