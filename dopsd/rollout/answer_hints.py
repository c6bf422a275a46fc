"""What `dopsd verify-teacher` shows the base of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.rollout.answer_span import answer_span, with_answer
from dopsd.tasks.common.task import AnswerTask, SolverTask

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.core.types import Problem, Rollout
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.task import Task


def hints(rollout: Rollout, ratio: float, mask_id: int, eos_id: int) -> Tensor:
    """Mask an answer except for a random share of its tokens.

    Args:
        rollout: The answer; completion_ids is [G].
        ratio: Share of the text tokens that stay; end-of-text tokens never stay.
        mask_id: Id of the mask token.
        eos_id: Id of the end-of-text token.

    Returns:
        Token ids [G].
    """
    ids = rollout.completion_ids
    text = (ids != eos_id).nonzero()[:, 0]
    key = torch.tensor(key_from("hints", rollout.problem_id, rollout.attempt), device=ids.device)
    positions = text[uniform(fold_in(key, text)).argsort()[: int(ratio * len(text))]]
    hint_ids = torch.full_like(ids, mask_id)
    hint_ids[positions] = ids[positions]
    return hint_ids


def answer_source(task: Task) -> str | None:
    """Return the name of the right answers that a task knows; None if it knows none."""
    if isinstance(task, AnswerTask):
        return "gold answer"
    return "solver's answer" if isinstance(task, SolverTask) else None


def answer_hints(
    policy: Policy,
    task: Task,
    problem: Problem,
    rollout: Rollout,
    ratio: float,
    after_eos: bool = False,
) -> Tensor:
    """Mask a completion except for a random share of a right answer in its answer's place.

    The place counts if the verifier calls the completion with the right answer right.

    Args:
        policy: the model, with its text conversion.
        task: the task, which knows the right answer, and verifies.
        problem: the problem.
        rollout: the completion, right or wrong.
        ratio: share of the answer's tokens that is shown, at least one; 0: none.
        after_eos: the text after the first end of text is scored, too.

    Returns:
        Token ids [G]; all masked where the completion has no usable answer.
    """
    ids, eos = rollout.completion_ids, policy.eos_id
    shown = torch.full_like(ids, policy.mask_id)
    text = (
        task.answer_text(problem)
        if isinstance(task, AnswerTask)
        else task.solver_answer(problem)
        if isinstance(task, SolverTask)
        else None
    )
    span = answer_span(policy.text, ids, eos)
    filled = with_answer(policy.text, ids, span, text, eos) if span and text is not None else None
    if filled is None or ratio == 0:
        return shown
    if not task.verify(problem, policy.text.decode(filled.ids, after_eos)).correct:
        return shown
    places = torch.arange(filled.start, filled.closed)
    key = torch.tensor(key_from("answer hints", rollout.problem_id))
    chosen = places[uniform(fold_in(key, places)).argsort()[: max(1, int(ratio * len(places)))]]
    shown[chosen] = filled.ids[chosen]
    return shown
