"""The protocol of tasks: data, how a problem is asked, and how an answer is scored."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dopsd.core.types import Cell, Problem, Score


class Task(Protocol):
    """A kind of problem: its data, how it is asked, and how an answer is scored."""

    name: str  # the task's name in params.yaml
    graded: bool  # True: scores are partial; sample all attempts and keep the best
    scoring: str  # the rule that decides: published or strict
    instructions: str  # the text that asks a problem: the task's own, or that of prompt_file

    def build(self) -> dict[str, list[Problem]]:
        """Return the problems of every split, by name."""

    def load(self, split: str) -> list[Problem]:
        """Read the problems of a split from disk."""

    def ask(self, text: str) -> Problem:
        """Return the problem that a person typed."""

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]:
        """Return the chat that asks the problem, in prompt style compact or instructions."""

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and its score."""

    def reward(self, problem: Problem, text: str) -> float:
        """Return the reward of a generation in reinforcement learning."""

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a row in a file of generations."""

    def ground_truth(self, problem: Problem) -> object:
        """Return the gold answer as files of generations hold it."""


class TaughtTask(Task, Protocol):
    """A task that `pretrain` can teach the embedded model."""

    def worked_solution(self, problem: Problem, is_careful: bool) -> str:
        """Return a generation that solves the problem, or tries to.

        Args:
            is_careful: True: the answer is right; False: it has a habitual mistake.
        """


@runtime_checkable
class AnswerTask(Protocol):
    """A task whose problems have one gold answer, as `has_gold_answers` of its settings says."""

    def answer_text(self, problem: Problem) -> str | None:
        r"""Return the gold answer as it stands in a generation, without tags and \boxed{}.

        Returns:
            The text; None if the gold answer is unknown.
        """


@runtime_checkable
class LayoutTask(Protocol):
    """A task whose reference solutions do not have the layout that its prompt asks for."""

    def laid_out_reference(self, problem: Problem) -> str:
        """Return the problem's reference solution in that layout, with its gold answer."""


@runtime_checkable
class SolverTask(Protocol):
    """A task that can solve its problems."""

    def solver_answer(self, problem: Problem) -> str | None:
        """Return a right answer as it stands in a generation; None if there is none."""


@runtime_checkable
class GridTask(Protocol):
    """A task whose answers are grids, which reports show as such."""

    def grid(self, problem: Problem, text: str) -> list[list[Cell]] | None:
        """Return the cells of the answer in a generation, row by row; or None."""


def grid_values(task: Task, problem: Problem, text: str) -> list[list[dict[str, Any]]] | None:
    """Return the rows of cells of an answer as JSON values; None if the answer is no grid."""
    rows = task.grid(problem, text) if isinstance(task, GridTask) else None
    return None if rows is None else [[asdict(cell) for cell in row] for row in rows]
