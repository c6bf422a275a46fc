"""Rows of a task's splits with their places, and the questions that occur twice."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code, DopsdError
from dopsd.core.progress import Progress
from dopsd.core.statistics import few
from dopsd.core.types import Problem
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.formats import extract, written
from dopsd.tasks.common.generated import GeneratedTask
from dopsd.tasks.common.sources import Row, read_file, unread
from dopsd.tasks.custom.rows import cell
from dopsd.tasks.custom.task import CustomTask
from dopsd.tasks.custom.verifiers.config import CommandConfig
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.config.params import Params


@dataclass(frozen=True)
class Located:
    """A problem with its split and the place of its row, `file:number`."""

    split: str
    place: str
    problem: Problem


def read(task: CustomTask) -> list[Located]:
    """Return the problems of all sources, in the order of their rows."""
    rows = [Located(s, row.place, p) for s in task.config.sources for row, p in task.read(s)]
    for split, source in task.config.sources.items():
        if not any(row.split == split for row in rows):
            raise Code.TOO_FEW_PROBLEMS.error(f"{task.key}.{split}.path: {source.path}: no rows")
    return rows


def check_rows(params: Params) -> list[str]:
    """Read the rows of the matrix's local files, and return a note for each with unread columns."""
    notes = []
    for name in dict.fromkeys([*params.matrix.tasks, *params.evaluate.watch]):
        config = params.data.tasks[name]
        task = load_task(name, config)
        if isinstance(task, GeneratedTask):
            next(task.maker.generate(0, 1))  # refuses settings that make no problem
        make = getattr(task, "problem_of", None)  # none in some plug-ins
        sources = {k: v for k, v in vars(config).items() if isinstance(v, Source) and v.is_file}
        if getattr(config, "generate", 0):
            sources.pop("train", None)  # is not read
        for split, source in sources.items():
            key = f"data.{name}.{split}"
            if make and (names := unread(source, f"{key}.path", make)):
                notes.append(f"{key}: {source.path}: not read: {', '.join(names)}")
    return notes


def check_splits(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Report sizes of the splits, and questions that are in two rows.

    `dopsd prepare` drops the repetition, so that no question is in two splits.
    """
    findings.head("Rows")
    sizes = {split: len(problems) for split, problems in task.build().items()}
    findings.add(*(f"{split}: {size} problems" for split, size in sizes.items()))
    findings.add(*few(sizes["test"], "test problems"))
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


NO_ANSWER = "no answer"
ANSWERS = "--answers"  # the option that names the file
PAIRS = 200  # wrong answers to try
TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def generation(task: CustomTask, answer: str) -> str | None:
    """Return a generation with this answer by the first format that has one text; None without."""
    c = task.config
    if (text := written(answer, c.answer_format[0])) is not None:
        return text
    formats = c.answer_format[: 1 if c.scoring == "strict" else None]
    texts = (written(answer, answer_format) for answer_format in formats)
    return next((text for text in texts if text and extract(text, formats) == answer), None)


def shortest(task: CustomTask, answer: str) -> str:
    """Return the shortest generation with this answer; for a pattern no less than the answer."""
    return generation(task, answer) or answer


def _score(task: CustomTask, problem: Problem, answer: str) -> float:
    """Return the score of a generation with this answer; for a pattern that of the answer."""
    text = generation(task, answer)
    return task.score(problem, answer) if text is None else task.verify(problem, text).score


def check_references(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Score every row's own answer; one without full marks could never be learned."""
    findings.head("Answers")
    failed = []
    with Progress(f"task check {task.name}", len(rows), "row") as progress:
        for row in rows:
            value = _score(task, row.problem, row.problem.answer)
            if value != 1.0:
                text = shortest(task, row.problem.answer)
                failed.append(f"{row.place}: {text[:80]!r} scores {value:g}")
            progress.step(1)
    if unwritten := sum(generation(task, row.problem.answer) is None for row in rows):
        findings.add(
            f"{unwritten} of {len(rows)} answers have no one text, since answer_format is a"
            " pattern: only the verifier scored these, and lengths are those of the answers"
        )
    findings.add(f"{len(rows) - len(failed)} of {len(rows)} own answers get full marks")
    findings.examples(failed)
    if failed:
        findings.faults.append(
            f"{len(failed)} of {len(rows)} own answers do not get full marks, such as {failed[0]};"
            f" change {task.key}.answer_format (which may cut the scored part out of an answer) or"
            " verifier, or remove the rows"
        )


def check_points(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Report whole numbers with .0, which `exact` tells from those without: pandas writes them."""
    found = [row for row in rows if re.fullmatch(r"-?\d+\.0", row.problem.answer)]
    if found and task.config.verifier.type == "exact":
        findings.add(
            f"{len(found)} of {len(rows)} answers are whole numbers with .0, such as"
            f" {found[0].place}: {found[0].problem.answer[:40]!r}, and verifier exact takes no"
            " other text for them; write them without, or use verifier number"
        )


def check_others(task: CustomTask, rows: list[Located], findings: Findings) -> None:
    """Score the answers of other rows, or an answer that is none; most must fail."""
    if task.config.verifier.compares:
        tests = task.config.verifier.type == "python_tests"  # the same ones accept both programs
        pairs = [
            (row.problem, other.problem.answer)
            for row, other in pairwise(rows)
            if row.problem.answer != other.problem.answer
            and not (tests and row.problem.extra == other.problem.extra)
        ][:PAIRS]
    else:
        pairs = [(row.problem, NO_ANSWER) for row in rows[:PAIRS]]
    accepted = [
        f"{p.id} with answer {p.answer[:40]!r} accepts {answer[:40]!r}"
        for p, answer in pairs
        if _score(task, p, answer) == 1.0
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


def check_file(task: CustomTask, path: Path, findings: Findings) -> None:
    """Score the answers of a file with columns answer, generation and, where known, correct."""
    findings.head(f"Answers in {path}")
    wrong = []
    for number, row in enumerate(read_file(path, ANSWERS)):
        is_empty = row.values.get("generation") == ""  # as models sometimes answer
        text = "" if is_empty else cell(row, "generation", ANSWERS, task.rows.decimal)
        result = task.verify(_problem(task, row), text)
        line = f"{row.place}: {result.score:g}, answer: {(result.answer or 'none')[:60]!r}"
        expected = _expected(row)
        if expected is not None and expected != result.correct:
            wrong.append(f"{line}; expected {'full marks' if expected else 'less'}")
        elif number < SHOWN:
            findings.add(line)
    findings.add(*wrong)
    if wrong:
        findings.faults.append(f"{len(wrong)} answers of {path} score otherwise than expected")


def _problem(task: CustomTask, row: Row) -> Problem:
    """Return the problem of a row with answers; a program also gets its question and columns."""
    question, answer = row.values.get("question"), None
    needs_row = isinstance(task.config.verifier, CommandConfig) or task.rows.row_columns
    if not (needs_row and question and row.values.get("answer") is None):
        answer = cell(row, "answer", ANSWERS, task.rows.decimal).strip()
    try:
        if not needs_row:
            return task.of_generation("?", answer)
        return task.of_row(None if question is None else str(question), answer)
    except DopsdError as error:
        hint = "; write its question in column question" if needs_row and question is None else ""
        raise DopsdError(f"{row.place}: {error}{hint}", code=error.code) from error


def _expected(row: Row) -> bool | None:
    value = row.values.get("correct")
    if value is None or value == "":
        return None
    if str(value).lower() not in TRUTHS:
        raise Code.SOURCE_ROW.error(
            f"{row.place}: expected true or false in column correct, found {value!r:.40}"
        )
    return TRUTHS[str(value).lower()]


SHOWN = 5  # examples of one kind


@dataclass
class Findings:
    """Lines of a report, and faults."""

    lines: list[str] = field(default_factory=list)  # the report, in the order of the checks
    # reasons why the task cannot be trained, one line each
    faults: list[str] = field(default_factory=list)

    def head(self, title: str) -> None:
        """Begin a part of the report."""
        self.lines += ["", title]

    def add(self, *lines: str) -> None:
        """Add lines to the current part."""
        self.lines += [f"  {line}" for line in lines]

    def examples(self, lines: list[str]) -> None:
        """Add the first lines, and the number of the others."""
        self.add(*lines[:SHOWN])
        if len(lines) > SHOWN:
            self.add(f"and {len(lines) - SHOWN} more")
