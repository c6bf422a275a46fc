"""Rows of unequal length as one tensor, and positions taken out of rows.

Shapes follow the legend of core/types.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def left_pad(rows: Sequence[Tensor], value: int) -> tuple[Tensor, Tensor]:
    """Stack rows of unequal length, padded on the left.

    Args:
        rows: B tensors of token ids, each [n].
        value: the id that fills the padding.

    Returns:
        ids [B, T], and the mask [B, T] that is False on padding.
    """
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), value, dtype=torch.long, device=rows[0].device)
    mask = torch.zeros((len(rows), width), dtype=torch.bool, device=rows[0].device)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = row
        mask[i, width - len(row) :] = True
    return ids, mask


def pack(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the True entries of each row, first to last.

    Args:
        flags: [B, G], bool.

    Returns:
        positions [B, C], padded to the row with the most entries, and their mask [B, C], False on
        padding.
    """
    counts = flags.sum(1)
    width = max(int(counts.max()), 1)
    order = flags.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :width]
    return order, torch.arange(width, device=flags.device) < counts[:, None]


def take(hidden: Tensor, slots: Tensor) -> Tensor:
    """Return the hidden states [B, C, D] at `slots` [B, C] of `hidden` [B, G, D]."""
    return hidden.gather(1, slots[:, :, None].expand(-1, -1, hidden.shape[-1]))


def through_first(tokens: Tensor, end: int) -> Tensor:
    """Mark the positions up to and including the first `end` of each row.

    Args:
        tokens: [..., G], token ids.
        end: the id that ends a row.

    Returns:
        [..., G], bool; all True in a row without `end`.
    """
    is_end = tokens == end
    return is_end.cumsum(-1) - is_end.long() == 0
