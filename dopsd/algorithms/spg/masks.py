"""Masks over completions: a random block in part and what follows it, or anywhere (SPG, 3.3).

N is the number of masks of a completion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.views import random_subset
from dopsd.core.rng import fold_in, uniform

if TYPE_CHECKING:
    from torch import Tensor


def chosen_blocks(keys: Tensor, used: Tensor, blocks: int, draws: int) -> Tensor:
    """Choose the block of each mask: the first of a random order of all, modulo those in use.

    Args:
        keys: [B].
        used: [B], blocks that hold a token up to the first end of text.
        blocks: blocks of a completion, at least `draws`.
        draws: N.

    Returns:
        [B, N], each from 0 to `used` - 1.
    """
    order = uniform(fold_in(keys[:, None], torch.arange(blocks))).argsort(-1)
    return order[:, :draws] % used[:, None]


def completion_masks(
    keys: Tensor, completion_mask: Tensor, chosen: Tensor, block_length: int, share: float
) -> Tensor:
    """Mask n ~ U{1..tokens} random tokens of the chosen block, and all after the block.

    Args:
        keys: [B, N].
        completion_mask: [B, G], True up to the first end of text; masked after it.
        chosen: [B, N], the block.
        block_length: tokens of a block; G: any part of the completion.
        share: probability that a token of an earlier block is masked.

    Returns:
        [B, N, G], True where a token is hidden.
    """
    length, counted = completion_mask.shape[1], completion_mask[:, None]
    draw = uniform(fold_in(keys[..., None], torch.arange(length + 1)))  # [B, N, G+1]
    blocks, chosen = torch.arange(length) // block_length, chosen[..., None]
    in_block = random_subset(draw, (blocks == chosen) & counted)
    earlier = (blocks < chosen) & (draw[..., :-1] < share)
    return in_block | earlier | (blocks > chosen) | ~counted
