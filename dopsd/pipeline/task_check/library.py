"""`dopsd task check gym_NAME`, and `dopsd task list reasoning_gym`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from dopsd.core.progress import Progress, table_console
from dopsd.core.types import Problem, Score
from dopsd.models.tokenizer import token_counts
from dopsd.pipeline.task_check.rows import Findings, Located
from dopsd.tasks.common.generated import GeneratedTask
from dopsd.tasks.reasoning_gym.config import EVALUATED, UNANSWERED
from dopsd.tasks.registry import GYM_NAME

if TYPE_CHECKING:
    from dopsd.config.params import Params

PROBLEMS = 100  # to make and to score
WRONG: dict[str, Callable[[Problem, Problem], str]] = {
    "a dot": lambda problem, other: ".",
    "words that answer nothing": lambda problem, other: "I do not know",
    "the next problem's answer": lambda problem, other: other.answer,
    "the own answer without its last character": lambda problem, other: problem.answer[:-1],
}


def problems_of(task: GeneratedTask) -> list[Located]:
    """Return problems that the library makes for this task now, none of them from disk."""
    rows = []
    with Progress(f"task check {task.name}", PROBLEMS, "problem") as progress:
        for number, made in enumerate(task.maker.generate(0, PROBLEMS), 1):
            rows.append(Located("train", f"problem {number}", task.problem_of(made)))
            progress.step(1)
    return rows


def scored(task: GeneratedTask, problem: Problem, answer: str) -> Score:
    """Return the score of a generation with this answer; for a pattern that of the answer."""
    text = task.laid_out(answer)
    if text is not None:
        return task.verify(problem, text)
    value = task.score(problem, answer)
    return Score(answer, value, value >= task.config.threshold, {"partial": value})


def check_answers(task: GeneratedTask, rows: Sequence[Located], findings: Findings) -> None:
    """Score right answers and four kinds of wrong ones."""
    findings.head("Answers")
    questions = len({row.problem.prompt for row in rows})
    findings.add(f"{questions} of {len(rows)} problems have a question of their own")
    began = time.monotonic()
    problems = [row.problem for row in rows]
    own = [scored(task, problem, problem.answer).correct for problem in problems]
    if not task.config.has_solutions:
        findings.add("the library has no right answer to show, and only scores those of a model")
    else:
        findings.add(f"{sum(own)} of {len(own)} answers of the library are right")
        if not all(own):
            row = rows[own.index(False)]
            findings.faults.append(
                f"{len(own) - sum(own)} of {len(own)} answers of the library are not right by its"
                f" own scorer, such as {row.place}: {row.problem.answer[:60]!r}; lower"
                f" {task.key}.threshold, or choose another dataset"
            )
    for kind, wrong in WRONG.items():
        others = zip(problems, problems[1:] + problems[:1], strict=True)
        scores = [scored(task, p, wrong(p, other)) for p, other in others]
        right = sum(score.correct for score in scores)
        mean = sum(score.figures["partial"] for score in scores) / len(scores)
        findings.add(f"{kind}: {right} of {len(scores)} right, mean score {mean:.2g}")
        if right > len(scores) / 2 and "dot" in kind:
            findings.faults.append(
                f"{kind}: {right} of {len(scores)} are right; raise {task.key}.threshold, or choose"
                " another dataset"
            )
    seconds = (time.monotonic() - began) / (len(WRONG) + 1) / len(rows)
    findings.add(f"{1000 * seconds:.1f} ms to score an answer")


def list_datasets(params: Params) -> None:
    """Print every dataset of reasoning-gym with an example, and what it costs."""
    from dopsd.tasks.reasoning_gym.task import listed

    tokens = token_counts(Path(params.model.path))
    table = Table("task", "question", "answer", "tokens", "ms", "note", box=SIMPLE)
    for row in listed():
        name = row["dataset"]
        texts = [" ".join((row[key] or "").split()) for key in ("question", "answer")]
        counts = " + ".join(map(str, tokens.counts(texts))) if tokens else ""
        cost, shown = f"{1000 * row['seconds']:.0f}", [Text(text[:60]) for text in texts]
        table.add_row(GYM_NAME + name, *shown, counts, cost, note_of(name))
    table_console().print(table)
    table_console().print(
        f"tokens: of question and answer, by {params.model.path}; ms: to make one"
    )


def note_of(dataset: str) -> str:
    """Return what to know of a dataset."""
    notes = {"composite": "a mixture of others", **dict.fromkeys(EVALUATED, "needs bubblewrap")}
    return (notes | dict.fromkeys(UNANSWERED, "has no answers to learn")).get(dataset, "")
