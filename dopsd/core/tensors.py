"""Rows of unequal length as one tensor, positions taken out of rows, and uploads to a device.

Shapes follow the legend of core/types.py.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def left_pad(rows: Sequence[Tensor], value: int) -> tuple[Tensor, Tensor]:
    """Stack rows of unequal length, padded on the left.

    Args:
        rows: B tensors of token ids, each [n].

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


def pack(flags: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the True entries of each row, first to last.

    Args:
        flags: [B, G], bool.
        width: C, the most entries of a row. Counting them here would wait for a GPU.

    Returns:
        positions [B, C], and their mask [B, C], False on padding.
    """
    order = flags.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :width]
    return order, torch.arange(width, device=flags.device) < flags.sum(1)[:, None]


def widest(flags: Tensor) -> int:
    """Return the most True entries of a row of flags [B, G] in main memory, at least 1."""
    return max(int(flags.sum(1).max()), 1)


def take(hidden: Tensor, slots: Tensor) -> Tensor:
    """Return the hidden states [B, C, D] at `slots` [B, C] of `hidden` [B, G, D]."""
    return hidden.gather(1, slots[:, :, None].expand(-1, -1, hidden.shape[-1]))


def first_index(ids: Tensor, token: int) -> int:
    """Return the position of the first such token; the length of `ids` without one."""
    row: list[int] = ids.tolist()
    return row.index(token) if token in row else len(row)


def through_first(tokens: Tensor, end: int) -> Tensor:
    """Mark the positions up to and including the first `end` of each row.

    Args:
        tokens: [..., G], token ids.

    Returns:
        [..., G], bool; all True in a row without `end`.
    """
    is_end = tokens == end
    return is_end.cumsum(-1) - is_end.long() == 0


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for a GPU.

    A GPU copies from page-locked memory by itself, while the process goes on.
    """
    if device.type != "cuda":
        return tensor.to(device)
    is_on_host = tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_on_host else tensor).to(device, non_blocking=True)


def true_positions(flags: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the rows [N] and columns [N] of the N True entries, on a device.

    Unlike indexing with the flags themselves, indexing with these does not wait for a GPU.

    Args:
        flags: [B, G], bool, in main memory.
    """
    rows, columns = upload(flags.nonzero().T.contiguous(), device)
    return rows, columns


@lru_cache(maxsize=16)
def index_of(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the ids as a tensor on a device, uploaded once."""
    return upload(torch.tensor(ids, dtype=torch.long), device)


@lru_cache(maxsize=16)
def index_without(ids: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """Return 0 to size - 1 without the ids, as a tensor on a device, uploaded once."""
    return upload(torch.tensor(sorted(set(range(size)) - set(ids)), dtype=torch.long), device)
