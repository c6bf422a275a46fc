"""The gate of infill: whether the shown answer tells the teacher anything (own)."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch

from dopsd.algorithms.common.distillation import sampleable_logits
from dopsd.core.tensors import true_positions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from dopsd.algorithms.common.batch import States
    from dopsd.models.policy import Policy


class Shift(NamedTuple):
    """How far the answer moves the teacher.

    Attributes:
        total: total variation, 0 to 1, summed over positions of all processes.
        positions: their number.
    """

    total: float
    positions: int

    @property
    def mean(self) -> float:
        """The mean over positions; 0 where the teacher was shown nothing."""
        return self.total / max(self.positions, 1)


def answer_shift(policy: Policy, updates: Iterable[Iterable[States]], at_once: int) -> Shift:
    """Measure sum |q(v) - q0(v)| / 2 of the teacher with the answer, q, and without it, q0.

    Both have the teacher's weights, so that what the student learns does not change the measure.
    Positions are all candidates of the states at which the teacher is shown a part of the answer.

    Args:
        policy: the model, with its teacher.
        updates: the states, by update and batch.
        at_once: sequences of a forward pass.
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
