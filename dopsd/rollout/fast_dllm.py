"""Approximate, faster decoding for evaluations that ask for it; training rollouts never use it.

Fast-dLLM (arXiv 2505.22618): tokens above a confidence threshold are committed together. Keys and
values are reused during a block: those before it (prefix), or all but its own (dual).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.rng import fold_in
from dopsd.core.tensors import pack, take
from dopsd.rollout.sampler import Decoding, DenoisingState, GenerationRequest, propose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.core.types import Rollout
    from dopsd.models.policy import Forward


@torch.no_grad()
def denoise_approximately(
    model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
) -> list[Rollout]:
    """Denoise every request from masks, in one batch, with a `threshold` or a `cache` or both.

    `revealed_at` counts the steps that were made; with a threshold these can be fewer or more than
    `decoding.steps`.

    Args:
        model: the model.
        requests: one request per row.
        decoding: lengths, steps, temperature, threshold and cache.

    Returns:
        The rollouts, in the order of the requests.
    """
    state = DenoisingState(model, requests, decoding)
    active = torch.arange(len(requests), device=state.ids.device)
    for block in state.blocks:
        state.ids[active, block] = model.mask_id
        view = _View(state, block, active)
        for k in (
            decoding.num_transfer_tokens
            if decoding.threshold is None
            else [1] * decoding.block_length
        ):
            rows = view.rows()
            if len(rows) == 0:
                break
            _commit(state, rows, view.hidden(rows), block, k)
            state.step += 1
        active = state.unfinished(active, block.stop)
        if len(active) == 0:
            break
    return state.rollouts()


class _View:
    """Hidden states of a block, from the part of the sequence that a step recomputes."""

    def __init__(self, state: DenoisingState, block: slice, active: Tensor) -> None:
        self.state, self.block, self.active, self.cache = state, block, active, state.decoding.cache
        self.kv_cache = None if self.cache == "none" else state.model.new_kv_cache()
        self.cache_positions: slice | None = None

    def rows(self) -> Tensor:
        """Return the rows with masks in the block.

        With a cache: all active rows, or none, because the kept keys have their rows.
        """
        has_masks = (self.state.ids[self.active, self.block] == self.state.model.mask_id).any(1)
        if self.kv_cache is None:
            return self.active[has_masks]
        return self.active if bool(has_masks.any()) else self.active[:0]

    def hidden(self, rows: Tensor) -> Tensor:
        """Return the hidden states [B, L, D] of the block's L positions."""
        model, ids, mask = self.state.model, self.state.ids[rows], self.state.attention_of(rows)
        if self.kv_cache is None:
            return model.hidden(ids, mask)[:, self.block]
        if self.cache_positions is not None:
            return model.hidden(
                ids[:, self.cache_positions], mask, self.kv_cache, self.cache_positions
            )[:, : self.state.decoding.block_length]
        hidden = model.hidden(ids, mask, self.kv_cache)[:, self.block]
        self.cache_positions = (
            slice(self.block.start, ids.shape[1]) if self.cache == "prefix" else self.block
        )
        return hidden


def _commit(state: DenoisingState, rows: Tensor, hidden: Tensor, block: slice, k: int) -> None:
    """Commit the k most confident masked positions of each row, and all above the threshold.

    Args:
        state: the batch.
        rows: [B], indices of rows.
        hidden: [B, L, D], states of the block.
        block: columns of the block.
        k: positions to commit, at least.
    """
    model, decoding = state.model, state.decoding
    slots, valid = pack(state.ids[rows, block] == model.mask_id)  # [B, C]
    columns = slots + block.start
    keys = fold_in(fold_in(state.keys[rows], state.step)[:, None], columns - state.start)  # [B, C]
    tokens, token_confidence = propose(model, take(hidden, slots)[valid], keys[valid], decoding)
    proposed = torch.zeros_like(slots).masked_scatter(valid, tokens)
    confidence = torch.full(slots.shape, -torch.inf, device=slots.device).masked_scatter(
        valid, token_confidence
    )
    order = confidence.sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    chosen = (
        (rank < k)
        if decoding.threshold is None
        else (rank < k) | (confidence >= decoding.threshold)
    )
    chosen &= valid
    state.commit(rows[:, None].expand_as(slots)[chosen], columns[chosen], proposed[chosen])
