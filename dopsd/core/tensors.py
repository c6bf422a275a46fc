"""Rows of unequal length as one tensor, and positions taken out of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def left_pad(rows: Sequence[Tensor], value: int) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as one tensor [B, T], padded on the left, and the mask that is False
    on padding.
    """
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), value, dtype=torch.long, device=rows[0].device)
    mask = torch.zeros((len(rows), width), dtype=torch.bool, device=rows[0].device)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = row
        mask[i, width - len(row) :] = True
    return ids, mask


def pack(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the True entries of each row, first to last, padded to the longest row. [B, G]
    -> [B, C], [B, C].
    """
    counts = flags.sum(1)
    width = max(int(counts.max()), 1)
    order = flags.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :width]
    return order, torch.arange(width, device=flags.device) < counts[:, None]


def take(hidden: Tensor, slots: Tensor) -> Tensor:
    """[B, G, D], [B, C] -> [B, C, D]."""
    return hidden.gather(1, slots[:, :, None].expand(-1, -1, hidden.shape[-1]))


def through_first(tokens: Tensor, end: int) -> Tensor:
    """Positions up to the first `end` of each row, that one included. [..., G] -> [..., G]."""
    is_end = tokens == end
    return is_end.cumsum(-1) - is_end.long() == 0
