"""The batch of routed: recorded states as the student and as the teacher see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.algorithms.common.trace_states import Trace

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RoutedTrace(Trace):
    """Recorded states with a teacher, and with the weights of their losses."""

    teacher_ids: Tensor  # [B, Q+G]
    teacher_mask: Tensor  # [B, Q+G], False on padding
    base_logps: Tensor  # [B, G], of the targets under the initial policy
    policy_weight: Tensor  # [B], 1 where the policy gradient counts, else 0
    distil_weight: Tensor  # [B], beta where the teacher counts, else 0

    def lesson_mask(self, on_host: bool = False) -> Tensor:
        """Return the predicted tokens that the teacher is not shown [B, G].

        Args:
            on_host: in main memory.
        """
        names = "loss_mask", "ids", "teacher_ids"
        predicted, ids, seen = (
            self.on_host(name) if on_host else getattr(self, name) for name in names
        )
        length = predicted.shape[1]
        return predicted & (ids[:, -length:] == seen[:, -length:])
