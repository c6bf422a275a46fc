"""The leaderboard's runs: what each was, what it reached, and what it had cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.leaderboard_board import BUDGETS, anchor, run_name
from dopsd.analysis.html_report.leaderboard_rows import cost_text, names
from dopsd.analysis.html_report.words import number
from dopsd.core.percent import percent, within

if TYPE_CHECKING:
    from dopsd.analysis.html_report.leaderboard_board import Board


def run_groups(
    board: Board, task: str, changed: dict[str, dict[str, tuple[str, str]]], links: dict[str, str]
) -> list[dict[str, Any]]:
    """Return a task's runs by entry.

    Args:
        board: the results.
        task: the task.
        changed: by run, each setting that differs from params.yaml, with both values.
        links: addresses of the runs in MLflow.
    """
    return [
        names(board, task, entry)
        | {
            "runs": [
                _run(run, changed.get(run_name(run), {}), links.get(run_name(run), ""))
                for run in board.runs(task, entry)
            ]
        }
        for entry in board.entries(task)
    ]


def _run(run: dict[str, Any], changed: dict[str, tuple[str, str]], link: str) -> dict[str, Any]:
    return run | {
        "name": run_name(run),
        "anchor": anchor(run["task"], run["entry"], run["seed"]),
        "changed": changed,
        "link": link,
        "rate": f"{run['rate']:g}",
        "best": [
            (BUDGETS[budget], _chosen(chosen))
            for budget in BUDGETS
            if (chosen := run["chosen"].get(budget))
        ],
    }


def _chosen(chosen: dict[str, Any]) -> list[str]:
    test = "–" if chosen["test"] is None else percent(chosen["test"])
    if chosen["test"] is not None and chosen["interval"]:
        test = within(chosen["test"], chosen["interval"])
    return [
        number(chosen["update"]),
        percent(chosen["validation"]),
        test,
        number(chosen["tokens"]),
        cost_text(chosen["cpu_seconds"]),
    ]
