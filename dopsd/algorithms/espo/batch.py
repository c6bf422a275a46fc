"""The batch of ESPO: completions under pairs of complementary masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.algorithms.common.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CoupledViews(Batch):
    """Completions under N masks each, with their advantages and earlier log-probabilities, in nats.

    Masks come in pairs of a mask and its complement; a full mask may follow.
    """

    ids: Tensor  # [B, N, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the sampled completion
    loss_mask: Tensor  # [B, N, G], True where a masked token counts
    view_weight: Tensor  # [B, N], factor of ln p
    advantage: Tensor  # [B], reward less the mean of the group's other rewards
    old_logps: Tensor  # [B, N, G], of the targets, under the policy that sampled them
    ref_logps: Tensor  # [B, N, G], under the initial policy
    weight: Tensor  # [B], 1; with objective token: tokens that count

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one completion: N."""
        return self.loss_mask.shape[1]

    @property
    def counted(self) -> Tensor:
        """Tokens that count, [B, G]: each is masked in one mask of every pair."""
        return self.loss_mask.any(1)

    @property
    def length(self) -> Tensor:
        """Number of tokens that count, L: [B]."""
        return self.counted.sum(1)
