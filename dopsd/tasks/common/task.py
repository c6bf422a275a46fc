"""The protocol of tasks: data, how a problem is asked, and how an answer is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dopsd.core.types import Problem, Score


class Task(Protocol):
    """A kind of problem: data, how it is asked, and how an answer is verified."""

    name: str
    graded: bool  # True: partial scores; sample all attempts and keep the best
    scoring: str  # the rule that decides: published or strict
    instructions: str  # what a problem is asked with: the task's own wording, or prompt_file's

    def build(self) -> dict[str, list[Problem]]: ...  # the problems of every split

    def load(self, split: str) -> list[Problem]: ...

    def ask(self, text: str) -> Problem: ...  # a problem typed by a person

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]: ...

    def verify(self, problem: Problem, text: str) -> Score: ...

    def reward(self, problem: Problem, text: str) -> float: ...

    def of_generation(
        self, question: str, ground_truth: object
    ) -> Problem: ...  # of a file of generations

    def ground_truth(self, problem: Problem) -> object: ...  # as such a file has it


class TaughtTask(Task, Protocol):
    """A task that `pretrain` can learn."""

    def worked_solution(self, problem: Problem, is_careful: bool) -> str: ...
