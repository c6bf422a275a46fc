"""A rollout with the answer that its teacher knows, and what the teacher is shown of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.teacher_view import TeacherView
from dopsd.core.settings import LARGEST
from dopsd.rollout.answer_span import answer_span, with_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dopsd.algorithms.common.states import BlockSchedule
    from dopsd.algorithms.infill.answers import Known
    from dopsd.algorithms.infill.config import InfillConfig
    from dopsd.core.metrics import MetricSums
    from dopsd.core.types import Problem, Rollout
    from dopsd.models.policy import Policy
    from dopsd.rollout.answer_span import AnswerSpan, FilledCompletion
    from dopsd.tasks.common.task import Task


@dataclass(frozen=True)
class Lesson:
    """A rollout to learn from.

    Attributes:
        problem: the problem.
        rollout: the student's rollout.
        span: its answer.
        answer: text of the answer that the teacher knows.
        filled: the rollout's completion with that answer.
    """

    problem: Problem
    rollout: Rollout
    span: AnswerSpan
    answer: str
    filled: FilledCompletion

    @property
    def is_rebuilt(self) -> bool:
        """Whether the answer has another length than the rollout's: the tail is built again."""
        return self.filled.end != self.span.end


def lesson(
    policy: Policy,
    task: Task,
    problem: Problem,
    rollout: Rollout,
    known: Known,
    after_eos: bool = False,
) -> Lesson | None:
    """Return the rollout with the known answer; None without a usable span.

    A span is usable if the verifier reads it (a right answer in it is scored as right) and if the
    completion can hold the known answer.

    Args:
        policy: the model, with its text conversion.
        task: the task, whose verifier checks the span.
        problem: the problem.
        rollout: the student's rollout.
        known: the answer.
        after_eos: the text after the first end of text is scored, too.
    """
    ids, eos = rollout.completion_ids, policy.eos_id
    span = answer_span(policy.text, ids, eos)
    if span is None:
        return None
    checked = with_answer(policy.text, ids, span, known.verified, eos)
    if checked is None:
        return None
    if not task.verify(problem, policy.text.decode(checked.ids, after_eos)).correct:
        return None
    filled: FilledCompletion | None = checked
    if known.shown != known.verified:
        filled = with_answer(policy.text, ids, span, known.shown, eos)
    return None if filled is None else Lesson(problem, rollout, span, known.shown, filled)


def view(lesson: Lesson, config: InfillConfig, blocks: BlockSchedule) -> TeacherView:
    """Return what the teacher is shown of a completion, and the blocks whose states train.

    A tail that was built again is shown only while the student has nothing of its own there, whose
    tokens would stand beside moved ones.

    Args:
        lesson: the rollout and the answer.
        config: settings of the method.
        blocks: the blocks of a completion.
    """
    first, last = trained_blocks(lesson.span, config, blocks, lesson.rollout)
    filled = lesson.filled
    positions = torch.arange(len(filled.ids))
    if config.place == "prompt":
        return TeacherView(
            showable=torch.zeros_like(positions, dtype=torch.bool),
            first_block=first,
            last_block=last,
        )
    is_answer: Tensor = (positions >= filled.start) & (positions < filled.closed)
    is_only = config.show == "answer"
    return TeacherView(
        shown_ids=filled.ids,
        showable=is_answer if is_only else None,
        least=int(is_only and config.reveal_ratio > 0),
        first_block=first,
        last_block=last,
        whole_from=filled.start if lesson.is_rebuilt else LARGEST,
    )


def trained_blocks(
    span: AnswerSpan, config: InfillConfig, blocks: BlockSchedule, rollout: Rollout
) -> tuple[int, int]:
    """Return the blocks [first, last) whose states are trained on.

    Args:
        span: the rollout's own answer.
        config: the setting `states`.
        blocks: the blocks of a completion.
        rollout: the rollout.
    """
    ends = span.start, max(span.start, span.end - 1)
    first, last = ((place + blocks.offset(rollout)) // blocks.block_length for place in ends)
    last += 1
    return {"all": (0, LARGEST), "before_answer": (0, first), "in_answer": (first, last)}[
        config.states
    ]


def count(sums: MetricSums, kept: int, lessons: Sequence[Lesson]) -> None:
    """Add the metrics of a collect.

    Args:
        sums: metrics of the rollouts, which are added to.
        kept: rollouts for which an answer was known.
        lessons: those of them with a usable span.
    """
    if kept:
        sums.add("span_share", len(lessons), kept)
    for item in lessons:
        sums.add("changed_share", item.answer != item.span.answer)
        sums.add("rebuilt_share", item.is_rebuilt)
