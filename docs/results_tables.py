"""Tables of the tournament's results, from benchmarks/tournament/results.json."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from settings_reference import table

from dopsd.core.statistics import gap, percent

RESULTS = Path(__file__).parents[1] / "benchmarks/tournament/results.json"


def standings_table(budget: str) -> str:
    """Return all entries with their test accuracy and our own minus it, a column for each task."""
    results = json.loads(RESULTS.read_text())
    rows = _rows(results, budget)
    pairs = {(p["budget"], p["task"], p["second"]): p for p in results["pairs"]}
    own = results["rules"]["own"]
    lines = []
    for entry in _order(results, rows):
        cells = []
        for task in _tasks(results):
            row, pair = rows.get((task, entry)), pairs.get((budget, task, entry))
            cells.append(f"{percent(row['test'])} ({row['seeds']})" if row else "–")
            minus = gap(pair["difference"], pair["interval"]) if pair else "–"
            cells.append(minus + (r" \*" if pair and pair["is_claim"] else ""))
        title = results["entries"][entry]["title"]
        lines.append([f"**{title}**" if entry == own else title, *cells])
    head = [word for t in _tasks(results) for word in (f"{t} (seeds)", "own minus it")]
    return table(["entry", *head], [["base", *_bases(results)], *lines])


def _tasks(results: dict[str, Any]) -> list[str]:
    """Return the tasks whose runs are all tested."""
    tested: dict[str, bool] = {}
    for row in results["standings"]:
        tested[row["task"]] = tested.get(row["task"], True) and row["test"] is not None
    return [task for task in results["rules"]["tasks"] if tested.get(task)]


def _rows(results: dict[str, Any], budget: str) -> dict[tuple[str, str], dict[str, Any]]:
    rows = (row for row in results["standings"] if row["budget"] == budget)
    return {(row["task"], row["entry"]): row for row in rows if row["task"] in _tasks(results)}


def _order(results: dict[str, Any], rows: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Return the entries by their mean gain over the tasks in which they took part."""
    gains: dict[str, list[float]] = {}
    for (task, entry), row in rows.items():
        gains.setdefault(entry, []).append(row["test"] - results["bases"][task]["test"])
    return sorted(gains, key=lambda entry: fmean(gains[entry]), reverse=True)


def _bases(results: dict[str, Any]) -> list[str]:
    return [t for task in _tasks(results) for t in (percent(results["bases"][task]["test"]), "")]
