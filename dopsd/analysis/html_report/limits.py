"""Sentences on what limits the conclusions of a comparison."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from dopsd.analysis.html_report import beginnings, verdicts, words
from dopsd.analysis.tables import RESAMPLED
from dopsd.core.percent import percent

if TYPE_CHECKING:
    from dopsd.analysis.html_report.comparison_page import ComparisonFacts
    from dopsd.analysis.results import Finished

ABSENT = "–"  # value of a setting that a method does not have


def of_these_runs(facts: ComparisonFacts) -> list[str]:
    """Return what limits the conclusions from these runs in particular."""
    spread = filter(None, map(verdicts.seed_spread, facts.named_tables["pairs"]))
    weights = beginnings.of_weights(facts.runs, facts.settings)
    return [
        *weights,
        *beginnings.of_starts(facts.runs),
        *spread,
        *_unequal_effort(facts),
        *_fewer_full_marks(facts),
    ]


def of_all(facts: ComparisonFacts) -> list[str]:
    """Return what limits the conclusions of comparisons with as many seeds."""
    seeds = min(row["seeds"] for row in facts.tables["means"])
    on_test = [run.name for run in facts.runs if run.selected["split"] == "test"]
    texts = [RESAMPLED]
    if seeds < verdicts.ENOUGH_SEEDS:
        more = list(range(verdicts.ENOUGH_SEEDS))
        texts.insert(
            0,
            f"Only {words.count(seeds, 'seed')} can be compared. Other seeds may give other values;"
            f" {verdicts.ENOUGH_SEEDS} or more are better:"
            f" `dopsd params --set 'matrix.seeds={more}'` and `dopsd repro`, which keeps finished"
            " runs.",
        )
    if on_test:
        texts.append(
            f"The test set itself selected the checkpoint of {', '.join(on_test)}: their test"
            " accuracy is too high."
        )
    return [
        *texts,
        "Seconds count all that a machine did in that time. Compare them only between runs on the"
        " same device without other work.",
        "Each further look at the same test problems, to choose between methods, makes the best one"
        " look better than it is.",
    ]


def lengths(facts: ComparisonFacts) -> str:
    """Return how long runs were in all; costs in the tables end at the selected checkpoint."""
    ends = dict.fromkeys((*map(words.number, _end(run)),) for run in facts.runs)
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
                f"{row['task']}: with {name} the mean score rises, but fewer answers get"
                f" full marks: {percent(after)}%, and {percent(before)}% of the base's."
            )
    return texts
