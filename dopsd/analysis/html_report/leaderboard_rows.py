"""Rows of the leaderboard's tables: texts, what a header sorts by, and the runs behind a number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.leaderboard_board import BUDGETS, accuracy, anchor
from dopsd.analysis.html_report.words import count, number
from dopsd.core.percent import ends, percent

if TYPE_CHECKING:
    from dopsd.analysis.html_report.leaderboard_board import Board

COSTS = {"tokens": "tokens", "cpu_seconds": "CPU s"}  # of the first rise

WHOLE = 10  # costs below it have a digit after the point
ABSENT: dict[str, Any] = {"note": "no checkpoint within the budget", "cells": []}


@dataclass(frozen=True)
class Cell:
    """A number of a table.

    Attributes:
        text: the number as shown.
        sort: what the table sorts by; None comes last.
        more: a smaller second line.
    """

    text: str
    sort: float | None = None
    more: str = ""


def cost_text(value: float) -> str:
    """Return a cost: whole from 10 on, with one digit below."""
    return f"{value:.1f}" if 0 < value < WHOLE and value % 1 else number(value)


def budget_rows(board: Board, budget: str, task: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a task's table: ranked ones, and those without a rank.

    Ranked are entries that were tested, if any was, with all seeds that were planned.
    """
    standings = board.standings(budget, task)
    with_tests = any(row["test"] is not None for row in standings)
    rows: dict[str, list[dict[str, Any]]] = {"ranked": [], "others": []}
    for standing in standings:
        note = _note(board, standing, with_tests)
        is_free = budget == "tokens" and board.samples_nothing(task, standing["entry"])
        row = _row(board, standing) | {"note": note or "samples no tokens" * is_free}
        rows["others" if note else "ranked"].append(row)
    for rank, row in enumerate(rows["ranked"], 1):
        row["rank"] = rank
    absent = [entry for entry in board.entries(task) if board.standing(budget, task, entry) is None]
    rows["others"] += [names(board, task, entry) | ABSENT for entry in absent]
    return rows


def _note(board: Board, standing: dict[str, Any], with_tests: bool) -> str:
    """Return why an entry has no rank; empty: it has one."""
    if with_tests and standing["test"] is None:
        return "not tested: the numbers are on validation"
    planned, made = len(board.results["rules"]["seeds"]), standing["seeds"]
    return f"only {made} of {planned} seeds: others failed or are missing" if made < planned else ""


def names(board: Board, task: str, entry: str) -> dict[str, Any]:
    """Return what names an entry on a task, and where the page has its runs."""
    described = board.results["entries"][entry]
    return {
        "rank": "",
        "entry": entry,
        "title": described["title"],
        "knows": board.knows(entry, task),
        "anchor": anchor(task, entry),
    }


def _row(board: Board, standing: dict[str, Any]) -> dict[str, Any]:
    task, entry, mean = standing["task"], standing["entry"], accuracy(standing)
    over, base = standing["over_base"], board.results["bases"][task]["validation"]
    gain = over["difference"] if over else mean - base
    interval = ends(over["interval"], "+") if over else "no interval yet"
    has_gain = over is not None or standing["test"] is None
    cells = {
        "over": Cell(percent(gain, "+"), gain, interval) if has_gain else Cell("–"),
        **{name: _reached(standing, name) for name in COSTS},
        "updates": _updates(board, standing),
        "spent": _spent(board, standing),
    }
    return names(board, task, entry) | {
        "seeds": standing["seeds"],
        "mean": Cell(percent(mean), mean),
        "by_seed": [
            (seed, percent(value), anchor(task, entry, seed))
            for seed, value in sorted(standing["by_seed"].items(), key=lambda item: int(item[0]))
        ],
        "cells": cells,
    }


def run_cost(run: dict[str, Any], budget: str, cost: str) -> float | None:
    """Return what a run had cost until its chosen checkpoint; None without one."""
    chosen = run["chosen"].get(budget)
    points = [p for p in run["curve"] if chosen and p["update"] == chosen["update"]]
    return points[0][cost] if points else None


def _mean_cost(board: Board, standing: dict[str, Any], cost: str) -> Cell:
    """Return the mean cost until the chosen checkpoint, over the runs behind a standing."""
    runs = board.runs(standing["task"], standing["entry"])
    values = [
        value
        for run in runs
        if str(run["seed"]) in standing["by_seed"]
        and (value := run_cost(run, standing["budget"], cost)) is not None
    ]
    return Cell(cost_text(fmean(values)), fmean(values)) if values else Cell("–")


def _reached(standing: dict[str, Any], cost: str) -> Cell:
    """Return the mean cost until the base plus the gain, and how many seeds got there."""
    reached, by, seeds = standing["reached"], standing["reached_by"], standing["seeds"]
    if not reached or not by:
        return Cell("not reached")
    if not reached[cost]:
        return Cell("spends none")
    more = f"by {by} of {count(seeds, 'seed')}" if by < seeds else ""
    most = "≤ " if standing["reached_first"] else ""  # the first checkpoint is there already
    return Cell(most + cost_text(reached[cost]), reached[cost], more)


def _spent(board: Board, standing: dict[str, Any]) -> Cell:
    """Return the sampled tokens until the chosen checkpoint, with the seconds below."""
    tokens = _mean_cost(board, standing, "tokens")
    cpu, wall = (_mean_cost(board, standing, name).text for name in ("cpu_seconds", "seconds"))
    return Cell(tokens.text, tokens.sort, f"{cpu} / {wall} s")


def _updates(board: Board, standing: dict[str, Any]) -> Cell:
    """Return the updates until the chosen checkpoint, and how many it was chosen from."""
    cell, choices = _mean_cost(board, standing, "update"), round(standing["checkpoints"])
    return Cell(cell.text, cell.sort, f"best of {choices}" if choices else "")


def pair_rows(board: Board, task: str) -> list[dict[str, Any]]:
    """Return the rows of a task's pairs."""
    return [_pair(board, pair) for pair in board.pairs(task)]


def _pair(board: Board, pair: dict[str, Any]) -> dict[str, Any]:
    task, first, second = pair["task"], pair["first"], pair["second"]
    claim = "no"
    if pair["is_claim"]:
        better = "first" if pair["difference"] > 0 else "second"
        claim = f"{better} is better" if board.is_pair_tested(pair) else "on validation only"
    return {
        "budget": BUDGETS[pair["budget"]].removeprefix("equal ").removeprefix("sampled "),
        "sides": [(board.title(name), anchor(task, name)) for name in (first, second)],
        "seeds": pair["seeds"],
        "difference": Cell(percent(pair["difference"], "+"), pair["difference"]),
        "by_seed": [
            (seed, percent(value, "+"), anchor(task, first, seed))
            for seed, value in sorted(pair["by_seed"].items(), key=lambda item: int(item[0]))
        ],
        "t": _interval(pair, "t"),
        "bootstrap": _interval(pair, "bootstrap"),
        "claim": claim,
        "is_first": pair["is_claim"] or board.is_of_own(pair),
    }


def _interval(pair: dict[str, Any], kind: str) -> tuple[str, bool]:
    """Return an interval as text, and whether it is the wider one."""
    interval = pair[kind]
    if interval is None:
        return "needs two seeds", False
    return ends(interval, "+"), interval == pair["interval"]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as people write them in YAML, on one line."""
    return ", ".join(f"{key}: {_plain(value)}" for key, value in settings.items()) or "–"


def switch_rows(board: Board, task: str) -> list[dict[str, Any]]:
    """Return the rows of a task's ablations."""
    return [
        {
            "switch": row["switch"],
            "settings": settings_text(row["settings"]),
            "title": board.title(row["entry"]),
            "anchor": anchor(task, row["entry"]),
            "seed": row["seed"],
            "validation": _share(row["validation"]),
            "over": Cell(_share(row["over_default"], "+"), row["over_default"]),
        }
        for row in board.results["switches"]
        if row["task"] == task
    ]


def _share(value: float | None, sign: str = "") -> str:
    return "–" if value is None else percent(value, sign)


def tuning_rows(board: Board, task: str) -> list[dict[str, Any]]:
    """Return for each entry the validation accuracy of every rate, and the chosen one."""
    rows = []
    for name, entry in board.results["entries"].items():
        rates = entry["rates"].get(task)
        if not rates or not rates["tried"]:
            continue
        tried = {float(rate): percent(value) for rate, value in rates["tried"].items()}
        rows.append(
            {
                "title": entry["title"],
                "anchor": anchor(task, name),
                "cells": [
                    (tried.get(rate, "–"), rate == rates["chosen"]) for rate in _rates(board, task)
                ],
                "chosen": "–" if rates["chosen"] is None else f"{rates['chosen']:g}",
                "edge": "at the edge of the tried rates" if board.at_edge(name, task) else "",
            }
        )
    return rows


def rate_titles(board: Board, task: str) -> list[str]:
    """Return the columns of `tuning_rows`."""
    return [f"{rate:g}" for rate in _rates(board, task)]


def _rates(board: Board, task: str) -> list[float]:
    entries = board.results["entries"].values()
    tried = {
        float(rate) for entry in entries for rate in entry["rates"].get(task, {}).get("tried", ())
    }
    return sorted(tried)
