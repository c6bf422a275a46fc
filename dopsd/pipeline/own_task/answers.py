"""Scores of given answers: references must get full marks, others must not."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import Progress
from dopsd.pipeline.own_task.findings import SHOWN
from dopsd.tasks.common.sources import Row, read_file, text_of
from dopsd.tasks.custom.answers import written

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.core.types import Problem
    from dopsd.pipeline.own_task.findings import Findings
    from dopsd.pipeline.own_task.rows import Located
    from dopsd.tasks.custom.task import CustomTask

NO_ANSWER = "no answer"
PAIRS = 200  # wrong answers to try
TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def generation(task: CustomTask, answer: str, problem: Problem) -> str:
    """Return a generation with this answer, in the first format; for a pattern the solution."""
    text = written(answer, task.config.answer_format[0])
    return text if text is not None else problem.reference or answer


def check_references(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Score every row's own answer; one without full marks could never be learned."""
    findings.head("Answers")
    failed = []
    with Progress(f"task check {task.name}", len(rows), "row") as progress:
        for row in rows:
            text = generation(task, row.problem.answer, row.problem)
            score = task.verify(row.problem, text)
            if not score.correct:
                failed.append(f"{row.place}: {text[:80]!r} scores {score.score:g}")
            progress.step(1)
    findings.add(f"{len(rows) - len(failed)} of {len(rows)} own answers get full marks")
    findings.examples(failed)
    if failed:
        findings.faults.append(
            f"{len(failed)} of {len(rows)} own answers do not get full marks, such as {failed[0]};"
            f" change {task.key}.answer_format or verifier, or remove the rows"
        )


def check_others(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Score the answers of other rows, or an answer that is none; most must fail."""
    if task.config.verifier.compares:
        pairs = [
            (row.problem, other.problem.answer)
            for row, other in pairwise(rows)
            if row.problem.answer != other.problem.answer
        ][:PAIRS]
    else:
        pairs = [(row.problem, NO_ANSWER) for row in rows[:PAIRS]]
    accepted = [
        f"{p.id} with answer {p.answer[:40]!r} accepts {answer[:40]!r}"
        for p, answer in pairs
        if task.verify(p, generation(task, answer, p)).correct
    ]
    findings.add(f"{len(accepted)} of {len(pairs)} wrong answers get full marks")
    findings.examples(accepted)
    if 2 * len(accepted) > len(pairs):
        findings.faults.append(
            f"{len(accepted)} of {len(pairs)} wrong answers get full marks: {task.key}.verifier"
            " does not tell right from wrong"
        )


def check_solutions(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Count worked solutions whose own answer is not found; sft would teach that form."""
    solved = [row for row in rows if row.problem.reference]
    failed = [
        row for row in solved if not task.verify(row.problem, str(row.problem.reference)).correct
    ]
    if failed:
        findings.add(
            f"{len(failed)} of {len(solved)} solutions do not show their answer in answer_format,"
            f" such as {failed[0].place}: methods that learn from solutions teach another format"
        )


def check_given(task: CustomTask, path: Path, findings: Findings) -> None:
    """Score the answers of a file with columns answer, generation and, where known, correct.

    Raises:
        DopsdError: if the file or a row of it cannot be read.
    """
    findings.head(f"Answers in {path}")
    wrong = []
    for number, row in enumerate(read_file(path, "--answers")):
        problem = task.of_generation("?", text_of(row, "answer"))
        score = task.verify(problem, text_of(row, "generation"))
        line = f"{row.place}: {score.score:g}, answer found: {(score.answer or 'none')[:60]!r}"
        expected = _expected(row)
        if expected is not None and expected != score.correct:
            wrong.append(f"{line}; expected {'full marks' if expected else 'less'}")
        elif number < SHOWN:
            findings.add(line)
    findings.add(*wrong)
    if wrong:
        findings.faults.append(f"{len(wrong)} answers of {path} score otherwise than expected")


def _expected(row: Row) -> bool | None:
    value = row.values.get("correct")
    if value is None or value == "":
        return None
    if str(value).lower() not in TRUTHS:
        raise DopsdError(
            f"{row.place}: expected true or false in column correct, found {value!r:.40}",
            code=Code.SOURCE_ROW,
        )
    return TRUTHS[str(value).lower()]
