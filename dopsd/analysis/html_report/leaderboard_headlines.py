"""First sentences of the leaderboard: what may be claimed of each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.leaderboard_board import BUDGETS
from dopsd.analysis.html_report.verdicts import ENOUGH_SEEDS
from dopsd.analysis.html_report.words import count
from dopsd.core.percent import points

if TYPE_CHECKING:
    from dopsd.analysis.html_report.leaderboard_board import Board


@dataclass(frozen=True)
class Headline:
    """What may be claimed of a task.

    Attributes:
        task: the task.
        grounds: how many seeds, and which split.
        sentences: one for each budget, or one that says why there is no claim.
    """

    task: str
    grounds: str
    sentences: list[str]


def headlines(board: Board) -> list[Headline]:
    """Return for each task what may be claimed, over how many seeds, on which split."""
    return [_headline(board, task) for task in board.results["rules"]["tasks"]]


def _headline(board: Board, task: str) -> Headline:
    rows = [row for budget in BUDGETS for row in board.standings(budget, task)]
    if not rows:
        return Headline(task, "not run yet", ["No claim: no entry has a result yet."])
    claims = {budget: _claim(board, task, budget) for budget in BUDGETS}
    sentences = [
        f"At {words}: {claims[budget] or 'no claim.'}" for budget, words in BUDGETS.items()
    ]
    if not any(claims.values()):
        sentences = [f"No claim: {_reason(board, task)}"]
    if still_open := _open(board, task):
        sentences.append(still_open)
    seeds = sorted({row["seeds"] for row in rows})
    span = count(seeds[-1], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    split = "on test" if board.is_tested(task) else "on validation only: the test has not run"
    return Headline(task, f"{span} for each entry, {split}", sentences)


def _open(board: Board, task: str) -> str:
    """Return which entries were not shown to be worse than the own one, at equal tokens."""
    told = [
        f"{board.title(pair['second'])} {points(-pair['difference'], _mirrored(pair['interval']))}"
        f" ({count(pair['seeds'], 'seed')})"
        for pair in sorted(board.pairs(task, "tokens"), key=lambda pair: pair["difference"])
        if pair["first"] == board.own and not pair["is_claim"] and pair["interval"][0] <= 0
    ]
    text = (
        f"No claim, but ahead of {board.title(board.own)} or not told apart from it, at equal"
        f" sampled tokens: {', '.join(told)}."
    )
    return text if told else ""


def _mirrored(interval: list[float]) -> list[float]:
    return [-interval[1], -interval[0]]


def _reason(board: Board, task: str) -> str:
    """Return why nothing may be claimed."""
    pairs = board.pairs(task)
    most = max((pair["seeds"] for pair in pairs), default=0)
    if not pairs and not board.is_tested(task):
        return "entries are compared on test only, which has not run for all of them."
    if not pairs:
        return "no two entries share a seed."
    if most < ENOUGH_SEEDS:
        return f"two entries share at most {count(most, 'seed')}, and a claim needs {ENOUGH_SEEDS}."
    return f"no interval of a difference over {ENOUGH_SEEDS} seeds or more is clear of 0."


def _claim(board: Board, task: str, budget: str) -> str:
    """Return all claims, a sentence for each better entry, in the order of the standings."""
    claims = board.claims(task, budget)
    ranks = [row["entry"] for row in board.standings(budget, task)]
    winners = sorted({pair["first"] for pair in claims}, key=lambda name: _rank(ranks, name))
    sentences = []
    for name in winners:
        told = [pair for pair in claims if pair["first"] == name]
        told.sort(key=lambda pair: _rank(ranks, pair["second"]))
        than = ", ".join(_than(board, pair) for pair in told)
        is_tested = all(map(board.is_pair_tested, told))
        verb = "is better" if is_tested else "was better on validation, which is no result yet,"
        seeds = count(min(pair["seeds"] for pair in told), "seed")
        sentences.append(f"{board.title(name)} {verb} {than}, over {seeds}.")
    return " ".join(sentences)


def _than(board: Board, pair: dict[str, Any]) -> str:
    """Return the worse entry with the difference, and what the two know where that differs."""
    knows = [board.knows(pair[side], pair["task"]) for side in ("first", "second")]
    unequal = f" (which knows {knows[1]}, not {knows[0]})" if knows[0] != knows[1] else ""
    gap = points(pair["difference"], pair["interval"])
    return f"than {board.title(pair['second'])}{unequal} by {gap}"


def _rank(ranks: list[str], entry: str) -> int:
    return ranks.index(entry) if entry in ranks else len(ranks)
