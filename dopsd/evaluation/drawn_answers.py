"""Answers of base and trained model to a few test problems, for people to read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dopsd.core.keys import key_from
from dopsd.core.progress import log
from dopsd.tasks.common.task import grid_values

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.core.types import Problem
    from dopsd.evaluation.evaluator import Evaluator
    from dopsd.evaluation.generate import Answer
    from dopsd.rollout.config import EvalProtocol

DRAWN = 10


def drawn_answers(
    evaluator: Evaluator, adapter: Path, protocol: EvalProtocol
) -> list[dict[str, Any]]:
    """Return the first attempts of base and trained model at DRAWN problems.

    The problems are drawn by a key of their ids, so nobody chooses them, and every run of a task
    shows the same ones. An answer that is no longer on disk is left out.

    Args:
        evaluator: the evaluator, which has evaluated both.
        adapter: the checkpoint folder of the trained model.
        protocol: the decoding settings.
    """
    problems = sorted(evaluator.problems, key=lambda problem: key_from("answers", problem.id))
    sides = {
        "base": evaluator.answers(None, protocol),
        "trained": evaluator.answers(adapter, protocol),
    }
    rows = []
    for problem in problems[:DRAWN]:
        if not all(problem.id in answers for answers in sides.values()):
            log(f"test: {problem.id}: answer not in work/eval any more; left out of answers.json")
            continue
        row: dict[str, Any] = {"problem": problem.prompt, "answer": problem.answer}
        row |= {side: _of(evaluator, problem, a[problem.id][0]) for side, a in sides.items()}
        rows.append(row)
    return rows


def _of(evaluator: Evaluator, problem: Problem, answer: Answer) -> dict[str, Any]:
    grid = grid_values(evaluator.task, problem, answer.text)
    return {"text": answer.text, "grid": grid, **asdict(answer.score)}
