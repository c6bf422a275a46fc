"""Where the tokens of a forward stand, and which of them see which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dopsd.models.denoiser import DenoiserConfig
    from dopsd.models.policy import Alignment


@dataclass(frozen=True)
class Layout:
    """The tokens of a forward: a window of a sequence, and perhaps a masked copy of the last."""

    first: int  # position of the window's first token; those before it are in the cache
    end: int  # position after the last token, the copy included
    copied: int  # tokens of the copy, which stand at the positions of their first copy
    block_size: int | None  # tokens of a block; None: every token sees every other
    # where blocks are counted from: the first token of the sequence, or that of the completion,
    # whose length is a multiple of them, so that it is the end
    alignment: Alignment = "completion"

    @classmethod
    def of(cls, config: DenoiserConfig, first: int, end: int, copied: int) -> Layout:
        """Return the layout of a forward with the blocks of a model."""
        return cls(first, end, copied, config.block_size, config.block_alignment)

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

        Returns:
            [B or 1, 1, W, T], or [B, 1, 1, T] where the rows are equal; bool.
        """
        if keep is not None and self.copied:
            keep = torch.cat([keep, keep[:, -self.copied :]], 1)
        if self.block_size is None or (keep is None and self._is_one_block):
            return None if keep is None else keep[:, None, None].bool()
        keys = torch.arange(self.end, device=device)
        is_copy = keys >= self.end - self.copied
        place = torch.where(is_copy, keys - self.copied, keys)[None]
        place = place - self._begin(keep)  # [B or 1, T]
        block = place.div(self.block_size, rounding_mode="floor")
        asking = block[:, self.first :, None]
        seen = ~is_copy & (block[:, None] < asking)  # earlier blocks of the first copy
        is_alike = is_copy == is_copy[self.first :, None]
        seen |= is_alike & (block[:, None] == asking)  # its own
        if keep is None:
            return seen[:, None]
        itself = keys == keys[self.first :, None]
        return (seen & keep[:, None, : self.end].bool() | itself)[:, None]

    def _begin(self, keep: Tensor | None) -> Tensor | int:
        """Return the position [B, 1] of each row from which blocks are counted."""
        if self.alignment == "completion":
            return self.end - self.copied
        return 0 if keep is None else (~keep.bool()).long().cumprod(1).sum(1, keepdim=True)

    @property
    def _is_one_block(self) -> bool:
        """Whether the window is within the last block, which sees all that is before it."""
        assert self.block_size is not None
        begin = self.end - self.block_size
        if self.alignment == "sequence":
            begin = (self.end - 1) // self.block_size * self.block_size
        return not self.copied and self.first >= begin
