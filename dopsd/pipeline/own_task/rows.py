"""Rows of a task's splits with their places, and the questions that occur twice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.config.data_files import FILES
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.tasks.common.sources import read_rows
from dopsd.tasks.custom.task import CustomTask

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.core.types import Problem
    from dopsd.pipeline.own_task.findings import Findings


@dataclass(frozen=True)
class Located:
    """A problem with its split and the place of its row, `file:number`."""

    split: str
    place: str
    problem: Problem


def read(task: CustomTask) -> list[Located]:
    """Return the problems of all sources, in the order of their rows.

    Raises:
        DopsdError: if a source cannot be read, has no rows, or a row makes no problem.
    """
    rows = [Located(s, row.place, p) for s in task.config.sources for row, p in task.read(s)]
    for split, source in task.config.sources.items():
        if not any(row.split == split for row in rows):
            raise DopsdError(
                f"{task.key}.{split}.path: {source.path}: no rows", code=Code.TOO_FEW_PROBLEMS
            )
    return rows


def check_columns(params: Params) -> None:
    """Read the first row of every local file of the matrix's own tasks, as `prepare` will.

    Raises:
        DopsdError: if the file cannot be read, or the row makes no problem.
    """
    for name in (name for name in params.matrix.tasks if name in params.data.custom):
        config = params.data.custom[name]
        task = CustomTask(name, config)
        for split, source in config.sources.items():
            is_file = Path(source.path).suffix in FILES
            rows = read_rows(source, f"data.{name}.{split}.path") if is_file else iter(())
            for row in islice(rows, 1):
                task.problem_of(row)


def check_splits(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Report sizes of the splits, and questions that are in two rows.

    `dopsd prepare` drops the repetition, so that no question is in two splits.
    """
    findings.head("Rows")
    findings.add(
        *(f"{split}: {len(problems)} problems" for split, problems in task.build().items())
    )
    first: dict[str, Located] = {}
    repeated, others = [], []
    for row in sorted(rows, key=lambda row: ("test", "validation", "train").index(row.split)):
        same = first.setdefault(task.identity(row.problem), row)
        if same is not row:
            repeated.append(
                f"{row.split} {row.place} has the question of {same.split} {same.place}"
            )
            answer, first_answer = row.problem.answer, same.problem.answer
            if answer != first_answer and task.score(same.problem, answer) != 1.0:
                others.append(
                    f"{row.place}: {answer[:40]!r}, but {same.place}: {first_answer[:40]!r}"
                )
    findings.add(f"{len(repeated)} of {len(rows)} rows repeat a question")
    findings.examples(repeated)
    if others:
        findings.add(
            f"{len(others)} of {len(repeated)} repeated rows have another answer, and only the"
            " first row of a question is kept"
        )
        findings.examples(others)
