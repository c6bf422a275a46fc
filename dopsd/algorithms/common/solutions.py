"""Reference solutions, for methods that learn from them or show them to a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import pad

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.tasks.common.task import LayoutTask, Task

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy


def solution(task: Task, problem: Problem, method: str) -> str:
    """Return the problem's own reference, or the task's worked solution."""
    if problem.reference:
        return problem.reference
    if hasattr(task, "worked_solution"):
        text: str = task.worked_solution(problem, True)
        return text
    raise Code.NO_SOLUTIONS.error(
        f"{method}: {task.name} problem {problem.id} has no reference solution; leave {method} out"
        " of matrix.methods, or the problem out of the data"
    )


def taught_solution(task: Task, problem: Problem, method: str) -> str:
    """Return `solution` in the layout that the task's prompt asks for, to be learnt."""
    if problem.reference and isinstance(task, LayoutTask):
        return task.laid_out_reference(problem)
    return solution(task, problem, method)


@dataclass
class Solutions:
    """Solutions that a method learns, as tokens; logs once if some are longer than G."""

    task: Task  # the task
    method: str  # name of the method, for messages
    length: int  # G, tokens of a solution
    is_cut_logged: bool = False  # whether the log line about cut solutions was written

    def of(self, policy: Policy, problems: Sequence[Problem]) -> list[Tensor]:
        """Return each problem's solution [G], padded with end of text."""
        return [padded(ids, self.length, policy.eos_id) for ids in self.tokens(policy, problems)]

    def tokens(self, policy: Policy, problems: Sequence[Problem]) -> list[Tensor]:
        """Return each problem's solution, neither cut nor padded."""
        tokens = [
            policy.text.tokens(taught_solution(self.task, problem, self.method))
            for problem in problems
        ]
        longest = max(map(len, tokens))
        if longest > self.length and not self.is_cut_logged:
            self.is_cut_logged = True
            log(
                f"{self.method}: some solutions are cut, with their answers, to {self.length}"
                f" tokens (sampling.gen_length, or `length` of the method); the longest has"
                f" {longest}"
            )
        return tokens


def padded(tokens: Tensor, length: int, eos_id: int) -> Tensor:
    """Return the first `length` of n tokens, padded with end of text."""
    return pad(tokens[:length], (0, max(0, length - len(tokens))), value=eos_id)
