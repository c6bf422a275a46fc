"""Reference solutions, for methods that learn from them or show them to a teacher."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from dopsd.errors import DopsdError
from dopsd.types import Problem, Task


def solution(task: Task, problem: Problem, method: str) -> str:
    """The problem's own reference, or the worked solution that a task derives from the answer.

    Raises DopsdError where there is none: Countdown's problems have answers, but nobody's reasoning.
    """
    if problem.reference:
        return problem.reference
    if hasattr(task, "worked_solution"):
        return task.worked_solution(problem, True)
    raise DopsdError(
        f"{method}: {task.name} problem {problem.id} has no reference solution; {method} runs on tasks that have them "
        "(gsm8k, math500, and sudoku's worked ones)"
    )


def padded(tokens: Tensor, length: int, eos_id: int) -> Tensor:
    """The first `length` tokens, the rest end of text. [n] -> [length]."""
    return pad(tokens[:length], (0, max(0, length - len(tokens))), value=eos_id)
