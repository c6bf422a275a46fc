"""Blocks of sampling beside those of a block-causal model; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.models.policy import Forward


def shared_block(model: Forward) -> int:
    """Return the tokens of a block that a prompt may share with its answer; 1: it shares none."""
    return model.block_size or 1 if model.block_alignment == "sequence" else 1


def blocks_misfit(size: int | None, gen_length: int, block_length: int) -> str | None:
    """Return why blocks of sampling do not fit a block-causal model; None if they do.

    Args:
        size: tokens of the model's blocks; None: it has none.
        gen_length: tokens of a completion.
        block_length: tokens of a block of sampling.
    """
    if size is None or (gen_length % size == 0 and size % block_length == 0):
        return None
    if gen_length % size:
        return f"gen_length {gen_length} is no multiple of {size}, this base's blocks of attention"
    return (
        f"block_length {block_length}: this base attends in blocks of {size}; set block_length to"
        " it, or to a part of it"
    )
