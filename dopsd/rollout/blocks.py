"""Blocks of sampling beside those of a block-causal model; imports no torch."""

from __future__ import annotations


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
