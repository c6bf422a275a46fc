"""Reference solutions, for methods that learn from them or show them to a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn.functional import pad

from dopsd.core.errors import DopsdError
from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.task import Task


def solution(task: Task, problem: Problem, method: str) -> str:
    """The problem's own reference, or the worked solution that a task derives from the answer.

    Raises DopsdError where there is none: Countdown's problems have answers, but nobody's
    reasoning.
    """
    if problem.reference:
        return problem.reference
    if hasattr(task, "worked_solution"):
        text: str = task.worked_solution(problem, True)
        return text
    raise DopsdError(
        f"{method}: {task.name} problem {problem.id} has no reference solution; leave {method} out"
        " of matrix.methods, or the problem out of the data"
    )


@dataclass
class Solutions:
    """Solutions of a task's problems as tokens of one length; says once that some are cut."""

    task: Task
    method: str
    length: int
    is_told: bool = False

    def of(self, policy: Policy, problems: Sequence[Problem]) -> list[Tensor]:
        """[G] each: the solution, the rest end of text."""
        tokens = [
            policy.text.tokens(solution(self.task, problem, self.method)) for problem in problems
        ]
        longest = max(map(len, tokens))
        if longest > self.length and not self.is_told:
            self.is_told = True
            log(
                f"{self.method}: some solutions are cut, end and answer too: one has {longest}"
                f" tokens of {self.length}"
            )
        return [padded(ids, self.length, policy.eos_id) for ids in tokens]


def padded(tokens: Tensor, length: int, eos_id: int) -> Tensor:
    """The first `length` tokens, the rest end of text. [n] -> [length]."""
    return pad(tokens[:length], (0, max(0, length - len(tokens))), value=eos_id)
