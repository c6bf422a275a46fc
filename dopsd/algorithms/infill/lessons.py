"""A rollout with the answer that its teacher knows, and what the teacher is shown of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import sampleable_logits
from dopsd.algorithms.d_opsd.teacher import TeacherView
from dopsd.core.errors import Code
from dopsd.core.metrics import MetricSums
from dopsd.core.settings import LARGEST
from dopsd.core.tensors import true_positions
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.answer_span import AnswerSpan, FilledCompletion, answer_span, with_answer
from dopsd.rollout.collector import RolloutGroup
from dopsd.tasks.common.task import AnswerTask, SolverTask, Task

if TYPE_CHECKING:
    from dopsd.algorithms.infill.config import InfillConfig
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class Lesson:
    """A rollout to learn from."""

    rollout: Rollout  # the student's rollout
    span: AnswerSpan  # its answer
    answer: str  # text of the answer that the teacher knows
    filled: FilledCompletion  # the rollout's completion with that answer

    @property
    def is_rebuilt(self) -> bool:
        """Whether the answer has another length than the rollout's: the tail is built again."""
        return self.filled.end != self.span.end


def lesson(
    policy: Policy,
    task: Task,
    problem: Problem,
    rollout: Rollout,
    answer: str,
    after_eos: bool = False,
) -> Lesson | None:
    """Return the rollout with the known answer; None without a usable span.

    A span is usable if the verifier reads it (a right answer in it is scored as right) and if the
    completion can hold the known answer.

    Args:
        after_eos: the text after the first end of text is scored, too.
    """
    ids, eos = rollout.completion_ids, policy.eos_id
    span = answer_span(policy.text, ids, eos)
    if span is None:
        return None
    filled = with_answer(policy.text, ids, span, answer, eos)
    if filled is None:
        return None
    if not task.verify(problem, policy.text.decode(filled.ids, after_eos)).correct:
        return None
    return Lesson(rollout, span, answer, filled)


def lesson_view(lesson: Lesson, config: InfillConfig) -> TeacherView:
    """Return what the teacher is shown of a completion.

    A tail that was built again is shown only while the student has nothing of its own there, whose
    tokens would stand beside moved ones.
    """
    filled = lesson.filled
    positions = torch.arange(len(filled.ids))
    return TeacherView(
        shown_ids=filled.ids,
        showable=(positions >= filled.start) & (positions < filled.closed),
        least=int(config.reveal_ratio > 0),
        whole_from=filled.start if lesson.is_rebuilt else LARGEST,
    )


def lesson_count(sums: MetricSums, kept: int, lessons: Sequence[Lesson]) -> None:
    """Add the metrics of a collect."""
    if kept:
        sums.add("span_share", len(lessons), kept)
    for item in lessons:
        sums.add("changed_share", item.answer != item.span.answer)
        sums.add("rebuilt_share", item.is_rebuilt)


class Answers:
    """Finds the answer of each problem."""

    def __init__(self, config: InfillConfig, task: Task) -> None:
        self.kind, self.task = config.answer, task
        if self.kind == "sibling":
            return
        if not isinstance(task, SolverTask if self.kind == "solver" else AnswerTask):
            lacking = "solver" if self.kind == "solver" else "one gold answer of a problem"
            raise Code.CONTRADICTION.error(
                f"method.infill.answer: {self.kind}: task {task.name} has no {lacking}; set"
                " method.infill.answer to sibling, and attempts to 2 or more"
            )

    def of(self, policy: Policy, group: RolloutGroup) -> str | None:
        """Return the answer that the teacher of a problem's rollout knows, or None."""
        problem, task = group.problem, self.task
        if self.kind == "sibling":
            return self._sibling(policy, group)
        if self.kind == "solver":
            return task.solver_answer(problem) if isinstance(task, SolverTask) else None
        return task.answer_text(problem) if isinstance(task, AnswerTask) else None

    def _sibling(self, policy: Policy, group: RolloutGroup) -> str | None:
        """Return the answer of the first right attempt that has an answer span."""
        for rollout, score in zip(group.rollouts, group.scores, strict=True):
            if score.correct and (
                span := answer_span(policy.text, rollout.completion_ids, policy.eos_id)
            ):
                return span.answer
        return None


class Shift(NamedTuple):
    """How far the answer moves the teacher."""

    total: float  # total variation, 0 to 1, summed over positions of all processes
    positions: int  # their number

    @property
    def mean(self) -> float:
        """The mean over positions; 0 where the teacher was shown nothing."""
        return self.total / max(self.positions, 1)


def answer_shift(policy: Policy, updates: Iterable[Iterable[States]], at_once: int) -> Shift:
    """Measure sum |q(v) - q0(v)| / 2 of the teacher with the answer, q, and without it, q0.

    Both have the teacher's weights, so that what the student learns does not change the measure.
    Positions are all candidates of the states at which the teacher is shown a part of the answer.
    """
    total, positions = 0.0, 0
    for batch in chain.from_iterable(updates):
        told, asked = batch.on_host("teacher_ids"), batch.on_host("student_ids")
        is_told = (told != asked).any(1)  # both have the same prompt
        if not bool(is_told.any()):
            continue
        for part in batch.rows(is_told.nonzero()[:, 0].tolist()).split(at_once):
            with torch.no_grad(), policy.teacher():
                shift = _predicted(policy, part, "teacher") - _predicted(policy, part, "student")
            total += shift.abs().sum().item() / 2
            positions += len(shift)
    shares = policy.process_group.all_gather_object([(total, positions)])
    return Shift(sum(t for t, _ in shares), sum(n for _, n in shares))


def _predicted(policy: Policy, states: States, side: str) -> Tensor:
    """Return the teacher's probabilities [N, V] at the candidates, in the state of one side."""
    where = true_positions(states.on_host("candidates"), states.candidates.device)
    length = states.candidates.shape[1]
    ids = states.teacher_ids if side == "teacher" else states.student_ids
    hidden = policy.hidden(ids, states.attention_mask(f"{side}_mask"))[:, -length:]
    return sampleable_logits(policy, hidden[where]).float().softmax(-1)
