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
