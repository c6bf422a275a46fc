"""Where the tokens of a forward stand, and which of them see which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The tokens of a forward: a window of a sequence, and perhaps a masked copy of its last ones.

    Attributes:
        first: position of the window's first token; those before it are in the cache.
        end: position after the last token, the copy included.
        copied: tokens of the copy, which stand at the positions of their first copy.
        block_size: tokens of a block, counted from the end; None: every token sees every other.
    """

    first: int
    end: int
    copied: int
    block_size: int | None

    def positions(self, device: torch.device) -> Tensor:
        """Return the position [W] of each token of the window."""
        positions = torch.arange(self.first, self.end, device=device)
        if self.copied:
            positions[-self.copied :] -= self.copied
        return positions

    def mask(self, keep: Tensor | None, device: torch.device) -> Tensor | None:
        """Return which keys each token sees, as sdpa takes it; None: all see all.

        Padding sees itself, as a row without any key has no softmax.

        Args:
            keep: [B, T], False on padding, without the copy; None without padding.
            device: where to make it.

        Returns:
            [B or 1, 1, W, T], or [B, 1, 1, T] where the rows are equal; bool.
        """
        if keep is not None and self.copied:
            keep = torch.cat([keep, keep[:, -self.copied :]], 1)
        if self.block_size is None or (keep is None and self._is_one_block):
            return None if keep is None else keep[:, None, None].bool()
        keys = torch.arange(self.end, device=device)
        is_copy = keys >= self.end - self.copied
        original = self.end - self.copied  # blocks are counted from here
        place = torch.where(is_copy, keys - self.copied, keys) - original
        block = place.div(self.block_size, rounding_mode="floor")
        seen = ~is_copy & (block < block[:, None])  # earlier blocks of the first copy
        seen |= (is_copy == is_copy[:, None]) & (block == block[:, None])  # its own
        seen = seen[self.first :]
        if keep is None:
            return seen[None, None]
        itself = keys == keys[self.first :, None]
        return (seen & keep[:, None, : self.end].bool() | itself)[:, None]

    @property
    def _is_one_block(self) -> bool:
        """Whether the window is the last block, which sees all that is before it."""
        assert self.block_size is not None
        return not self.copied and self.end - self.first <= self.block_size
