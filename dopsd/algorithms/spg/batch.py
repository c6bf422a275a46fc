"""Masked completions of SPG, with their advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.algorithms.common.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BoundedCompletions(Batch):
    """Completions under N masks each, as both bounds of their likelihood are estimated."""

    ids: Tensor  # [B, N, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G]
    loss_mask: Tensor  # [B, N, G], True at masked tokens up to the first end of text
    advantage: Tensor  # [B], not 0
    weight: Tensor  # [B], tokens up to the first end of text

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one completion: N."""
        return self.ids.shape[1]
