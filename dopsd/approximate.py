"""Faster decoding that gives other answers: for evaluations that say so, never for training rollouts.

Fast-dLLM (arXiv 2505.22618): tokens above a confidence threshold are committed together, and keys and values are kept
through a block, those of what stands before it (prefix) or of all but the block (dual).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dopsd.keyed import fold_in
from dopsd.sampling import Canvas, Decoding, Draw, pack, propose, take
from dopsd.types import Policy, Rollout


@torch.no_grad()
def denoise_approximately(policy: Policy, draws: Sequence[Draw], decoding: Decoding) -> list[Rollout]:
    """Denoise every draw from masks alone, in one batch, with decoding's `threshold` or `cache` or both.

    A rollout's `revealed_at` counts the steps that were made, which a threshold makes fewer or more than `steps`.
    """
    canvas = Canvas(policy, draws, decoding)
    active = torch.arange(len(draws), device=canvas.ids.device)
    for block in canvas.blocks:
        canvas.ids[active, block] = policy.mask_id
        view = _View(canvas, block, active)
        for k in decoding.schedule if decoding.threshold is None else [1] * decoding.block_length:
            rows = view.rows()
            if len(rows) == 0:
                break
            _commit(canvas, rows, view.hidden(rows), block, k)
            canvas.step += 1
        active = canvas.unfinished(active, block.stop)
        if len(active) == 0:
            break
    return canvas.rollouts()


class _View:
    """The hidden states of a block's positions, from as much of the sequence as `cache` computes anew at each step."""

    def __init__(self, canvas: Canvas, block: slice, active: Tensor) -> None:
        self.canvas, self.block, self.active, self.cache = canvas, block, active, canvas.decoding.cache
        self.kept = None if self.cache == "none" else canvas.policy.key_values()
        self.window: slice | None = None

    def rows(self) -> Tensor:
        """Rows with masks in the block; where keys are kept all active ones, or none, since kept keys have their rows."""
        has_masks = (self.canvas.ids[self.active, self.block] == self.canvas.policy.mask_id).any(1)
        if self.kept is None:
            return self.active[has_masks]
        return self.active if bool(has_masks.any()) else self.active[:0]

    def hidden(self, rows: Tensor) -> Tensor:
        """[B, L, D]."""
        policy, ids, mask = self.canvas.policy, self.canvas.ids[rows], self.canvas.attention_of(rows)
        if self.kept is None:
            return policy.hidden(ids, mask)[:, self.block]
        if self.window is not None:
            return policy.hidden(ids[:, self.window], mask, self.kept, self.window)[:, : self.canvas.decoding.block_length]
        found = policy.hidden(ids, mask, self.kept)[:, self.block]
        self.window = slice(self.block.start, ids.shape[1]) if self.cache == "prefix" else self.block
        return found


def _commit(canvas: Canvas, rows: Tensor, hidden: Tensor, block: slice, k: int) -> None:
    """The k surest masked positions of each row, and all whose confidence reaches the threshold. hidden [B, L, D]."""
    policy, decoding = canvas.policy, canvas.decoding
    slots, valid = pack(canvas.ids[rows, block] == policy.mask_id)  # [B, C]
    columns = slots + block.start
    keys = fold_in(fold_in(canvas.keys[rows], canvas.step)[:, None], columns - canvas.start)  # [B, C]
    tokens, sure = propose(policy, take(hidden, slots)[valid], keys[valid], decoding)
    proposed = torch.zeros_like(slots).masked_scatter(valid, tokens)
    confidence = torch.full(slots.shape, -torch.inf, device=slots.device).masked_scatter(valid, sure)
    order = confidence.sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    chosen = (rank < k) if decoding.threshold is None else (rank < k) | (confidence >= decoding.threshold)
    chosen &= valid
    canvas.commit(rows[:, None].expand_as(slots)[chosen], columns[chosen], proposed[chosen])
