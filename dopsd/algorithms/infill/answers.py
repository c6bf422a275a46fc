"""The answer that a teacher knows: gold, a sibling's, a solver's, or another problem's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.rng import key_from
from dopsd.rollout.answer_span import answer_span
from dopsd.tasks.common.task import AnswerTask, SolverTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.infill.config import InfillConfig
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutGroup
    from dopsd.tasks.common.task import Task


@dataclass(frozen=True)
class Known:
    """Texts of an answer.

    Attributes:
        verified: a right answer of the problem, by which a span is checked.
        shown: the answer that the teacher knows: the same, but in the control `other`.
    """

    verified: str
    shown: str


class Answers:
    """Finds the answer of each problem.

    Args:
        config: settings of the method.
        task: the task of the run.
        seed: seed of the run.

    Raises:
        DopsdError: if the task has no such answers.
    """

    def __init__(self, config: InfillConfig, task: Task, seed: int) -> None:
        self.kind, self.task, self.seed = config.answer, task, seed
        self.pool: Sequence[Problem] = []
        if config.show == "future" or self.kind == "sibling":
            return
        if not isinstance(task, SolverTask if self.kind == "solver" else AnswerTask):
            lacking = "solver" if self.kind == "solver" else "one gold answer of a problem"
            raise DopsdError(
                f"method.infill.answer: {self.kind}: task {task.name} has no {lacking}; set"
                " method.infill.answer to sibling, and attempts to 2 or more",
                code=Code.CONTRADICTION,
            )
        if self.kind == "other":
            self.pool = task.load("train")

    def of(self, policy: Policy, group: RolloutGroup, update: int) -> Known | None:
        """Return the answer that the teacher of a problem's rollout knows; None if there is none.

        Args:
            policy: the model, with its text conversion.
            group: the attempts at the problem.
            update: number of the collect.
        """
        problem, task = group.problem, self.task
        if self.kind == "sibling":
            verified = self._sibling(policy, group)
        elif self.kind == "solver":
            verified = task.solver_answer(problem) if isinstance(task, SolverTask) else None
        else:
            verified = self._gold(problem)
        if verified is None:
            return None
        shown = self._other(problem, verified, update) if self.kind == "other" else verified
        return None if shown is None else Known(verified, shown)

    def _gold(self, problem: Problem) -> str | None:
        return self.task.answer_text(problem) if isinstance(self.task, AnswerTask) else None

    def _sibling(self, policy: Policy, group: RolloutGroup) -> str | None:
        """Return the answer of the first right attempt that has an answer span."""
        for rollout, score in zip(group.rollouts, group.scores, strict=True):
            if score.correct and (
                span := answer_span(policy.text, rollout.completion_ids, policy.eos_id)
            ):
                return span.answer
        return None

    def _other(self, problem: Problem, own: str, update: int) -> str | None:
        """Return the gold answer of a problem that is drawn by key: the next one that differs."""
        first = key_from("infill", self.seed, update, problem.id)
        for number in range(len(self.pool)):
            other = self._gold(self.pool[(first + number) % len(self.pool)])
            if other is not None and other != own:
                return other
        return None
