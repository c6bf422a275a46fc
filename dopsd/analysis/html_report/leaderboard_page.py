"""The leaderboard of a tournament as an HTML page: ranks, claims, curves, and every run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report import leaderboard_rows as rows
from dopsd.analysis.html_report.leaderboard_board import BUDGETS, Board
from dopsd.analysis.html_report.leaderboard_charts import AXES, accuracy_chart
from dopsd.analysis.html_report.leaderboard_headlines import headlines
from dopsd.analysis.html_report.leaderboard_runs import run_groups
from dopsd.analysis.html_report.leaderboard_words import PUBLISHED, WORDS, limits
from dopsd.analysis.html_report.page import digest_of, render
from dopsd.analysis.html_report.words import number
from dopsd.analysis.papers import paper_tables
from dopsd.core.percent import percent

if TYPE_CHECKING:
    from dopsd.analysis.papers import PaperTable


@dataclass(frozen=True)
class LeaderboardFacts:
    """All that a leaderboard shows.

    Attributes:
        results: what `dopsd.pipeline.leaderboard_results.read_results` returns.
        changed: by run, each setting that differs from params.yaml, with both values.
        links: addresses of the runs in MLflow, by run.
        published: tables of papers on the same tasks.
    """

    results: dict[str, Any]
    changed: dict[str, dict[str, tuple[str, str]]]
    links: dict[str, str]
    published: list[PaperTable]


def published_of(results: dict[str, Any]) -> list[PaperTable]:
    """Return the tables of papers on the tasks of a tournament."""
    return [table for task in Board(results).tasks for table in paper_tables(task, {})]


def leaderboard_page(facts: LeaderboardFacts) -> str:
    """Return the page, which keeps a digest of its facts."""
    board = Board(facts.results)
    rules = facts.results["rules"]
    values = {
        "title": "Leaderboard",
        "answer": board.results["answer"],
        "headlines": headlines(board),
        "untested": [task for task in board.tasks if not board.is_tested(task)],
        "warnings": facts.results["warnings"],
        "rules": rules,
        "looks": facts.results["looks"],
        "gain": f"{100 * rules['gain']:g}",
        "tuning_share": f"{100 * rules['tuning']['share']:g}",
        "bases": facts.results["bases"],
        "entries": [_entry(board, name) for name in facts.results["entries"]],
        "own": board.title(board.own) if board.own in facts.results["entries"] else "",
        "cost_text": rows.cost_text,
        "tasks": [_task(board, task, facts) for task in board.tasks],
        "costs": rows.COSTS,
        "papers": facts.published,
        "published": PUBLISHED,
        "limits": limits(board),
        "axes": AXES,
        "percent": percent,
        "number": number,
        "glossary": dict(sorted(WORDS.items())),
    }
    charts = {"cost": [accuracy_chart(board, task) for task in board.tasks]}
    return render("leaderboard.html", digest_of(asdict(facts)), charts, values)


def _task(board: Board, task: str, facts: LeaderboardFacts) -> dict[str, Any]:
    return {
        "name": task,
        "split": "test" if board.is_tested(task) else "validation",
        "tables": [
            (budget, words, _limit(board, budget), rows.budget_rows(board, budget, task))
            for budget, words in BUDGETS.items()
        ],
        "pairs": rows.pair_rows(board, task),
        "switches": rows.switch_rows(board, task),
        "rates": rows.rate_titles(board, task),
        "tuning": rows.tuning_rows(board, task),
        "groups": run_groups(board, task, facts.changed, facts.links),
    }


def _entry(board: Board, name: str) -> dict[str, Any]:
    """Return an entry with what it knows and its settings, by task where they differ."""
    entry: dict[str, Any] = board.results["entries"][name]
    knows = {task: board.knows(name, task) for task in board.tasks}
    return entry | {
        "name": name,
        "is_own": name == board.own,
        "knows": _by_task(knows),
        "settings": _by_task(
            {task: rows.settings_text(settings) for task, settings in entry["settings"].items()}
        ),
    }


def _by_task(texts: dict[str, str]) -> list[str]:
    """Return one text where it is the same for all tasks, else one for each of them."""
    if len(set(texts.values())) <= 1:
        return list(texts.values())[:1] or ["–"]
    return [f"{task}: {text}" for task, text in texts.items()]


def _limit(board: Board, budget: str) -> str:
    unit = {"tokens": "tokens", "seconds": "seconds of one thread"}[budget]
    return f"at most {rows.cost_text(board.results['rules'][budget])} {unit}"
