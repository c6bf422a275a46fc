"""Published tables beneath a comparison: one for each paper and protocol, never mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import kind_of
from dopsd.analysis.tables import head, line
from dopsd.evaluation.published import published_tables

if TYPE_CHECKING:
    from dopsd.evaluation.published import PublishedTable

UNREPORTED = "not reported"


@dataclass(frozen=True)
class PaperTable:
    """A paper's accuracies on a task, by one protocol, as texts.

    Attributes:
        title: task, model, protocol and paper.
        columns: titles of the columns.
        rows: cells of each method.
        notes: rows that are not the method of the runs of that name.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def paper_tables(task: str, names: dict[str, str]) -> list[PaperTable]:
    """Return all published tables of a task.

    Args:
        task: the task.
        names: names of the compared methods of the task, with their variants.
    """
    return [_table(task, paper, names) for paper in published_tables() if task in paper.lengths]


def _table(task: str, paper: PublishedTable, names: dict[str, str]) -> PaperTable:
    lengths = paper.lengths[task]
    rows = []
    for method, row in ((m, tasks[task]) for m, tasks in paper.methods.items() if task in tasks):
        missing = [UNREPORTED] * (len(lengths) - len(row["accuracy"]))
        cells = [*map(str, row["accuracy"]), *missing, str(row.get("updates", UNREPORTED))]
        rows.append([task, method, *cells])
    shown = {method for _, method, *_ in rows}
    notes = [
        f"The row `{kind_of(method)}` above is not the method of the runs of `{name}` here."
        for method, name in names.items()
        if kind_of(method) in shown and method != name
    ]
    title = f"{task}, LLaDA-8B-Instruct, accuracy in %, {paper.protocol} ({paper.source})"
    columns = ["task", "method", *(f"length {n}" for n in lengths), "update"]
    return PaperTable(title, columns, rows, notes)


def markdown_of(table: PaperTable) -> list[str]:
    """Return a published table as lines of Markdown, marked as not run here."""
    lines = ["", f"PUBLISHED, not run here: {table.title}.", "", *head(*table.columns)]
    lines += [line(*row) for row in table.rows]
    return [*lines, *(["", *table.notes] if table.notes else [])]
