"""Approximate, faster decoding for evaluations and methods that ask for it.

Fast-dLLM (arXiv 2505.22618): tokens above a confidence threshold are committed together. Keys and
values are reused during a block: those before it (prefix), or all but its own (dual).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.rng import fold_in
from dopsd.core.tensors import pack, take, upload
from dopsd.core.types import Rollout
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, GrowingHidden, SampledBatch, propose

if TYPE_CHECKING:
    from dopsd.models.policy import Forward


@torch.no_grad()
def denoise_approximately(
    model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
) -> list[Rollout]:
    """Return the rollouts of requests in their order, by a `threshold` or a `cache` or both.

    With a threshold, steps can be fewer or more than `decoding.steps`; those of a block are counted
    from its first column in `revealed_at`, so that a row does not depend on the others, and
    `is_fallback` marks the tokens of steps at which none reached it.
    """
    batch = _Batch(model, requests, decoding)
    is_plain = model.block_size is None or decoding.cache != "none"
    growing = None if is_plain else GrowingHidden(model, batch.start)
    active = torch.arange(len(requests), device=batch.ids.device)
    for block in batch.blocks:
        batch.enter(active, block)
        view = _View(batch, block, active, growing)
        if decoding.threshold is not None:
            batch.step = block.start - batch.start
        for k in decoding.num_transfer_tokens:
            rows, counts = view.rows()
            if not counts:
                break
            _commit(batch, _Masks(rows, counts, block), view, k)
            view.committed += k
            batch.step += 1
        before, active = active, batch.unfinished(active, block.stop)
        if growing is not None:
            growing.keep(before, active)
        if len(active) == 0:
            break
    return batch.rollouts()


class _Batch(SampledBatch):
    """A batch during denoising, and the positions that were committed below the threshold."""

    def __init__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> None:
        super().__init__(model, requests, decoding)
        self.is_fallback = torch.zeros_like(self.revealed_at, dtype=torch.bool)  # [B, W]

    def rollouts(self) -> list[Rollout]:
        """Return the rollout of each request, with `is_fallback` if there is a threshold."""
        found = super().rollouts()
        if self.decoding.threshold is None:
            return found
        marks = self.is_fallback.gather(1, self.completion).cpu()
        return [replace(r, is_fallback=row) for r, row in zip(found, marks, strict=True)]


@dataclass(frozen=True)
class _Masks:
    """The masked positions of a block: rows [B], the number of masks in each, and the columns."""

    rows: Tensor
    counts: list[int]
    block: slice


class _View:
    """Hidden states of a block, from the part of the sequence that a step recomputes."""

    def __init__(
        self, batch: _Batch, block: slice, active: Tensor, growing: GrowingHidden | None
    ) -> None:
        self.batch, self.block, self.active, self.cache = batch, block, active, batch.decoding.cache
        self.growing = growing
        self.kv_cache = None if self.cache == "none" else batch.model.new_kv_cache()
        self.cache_positions: slice | None = None
        self.committed = 0  # tokens of each row, at least

    def rows(self) -> tuple[Tensor, list[int]]:
        """Return the rows with masks in the block, and the number of masks of each.

        With a cache: all active rows, or none, because the kept keys have their rows. The numbers
        are known without a threshold; with one, the process waits for the GPU to count.
        """
        decoding, active = self.batch.decoding, self.active
        if decoding.threshold is None and not self.batch.is_shared:
            return active, [decoding.block_length - self.committed] * len(active)
        masked = self.batch.ids[active, self.block] == self.batch.model.mask_id
        counts: list[int] = masked.sum(1).tolist()
        if self.kv_cache is not None or self.growing is not None:
            return active, counts if any(counts) else []
        rows = torch.tensor([i for i, count in enumerate(counts) if count], dtype=torch.long)
        return active[upload(rows, active.device)], [count for count in counts if count]

    def hidden(self, rows: Tensor) -> Tensor:
        """Return the hidden states [B, L, D] of the block's L positions."""
        model, ids, mask = self.batch.model, self.batch.ids[rows], self.batch.attention_of(rows)
        if self.growing is not None:
            return self.growing.of(ids, mask, self.block)
        if self.kv_cache is None:
            return model.hidden(ids, mask)[:, self.block]
        if self.cache_positions is not None:
            return model.hidden(
                ids[:, self.cache_positions], mask, self.kv_cache, self.cache_positions
            )[:, : self.batch.decoding.block_length]
        hidden = model.hidden(ids, mask, self.kv_cache)[:, self.block]
        self.cache_positions = (
            slice(self.block.start, ids.shape[1]) if self.cache == "prefix" else self.block
        )
        return hidden


def _commit(batch: _Batch, masks: _Masks, view: _View, k: int) -> None:
    """Commit masked positions of each row, as `_chosen` says."""
    model, decoding, rows = batch.model, batch.decoding, masks.rows
    hidden = view.hidden(rows)  # [B, L, D]
    width = max(*masks.counts, 1)
    slots, valid = pack(batch.ids[rows, masks.block] == model.mask_id, width)  # [B, C]
    is_valid = torch.arange(width) < torch.tensor(masks.counts)[:, None]
    index = upload(is_valid.flatten().nonzero()[:, 0], slots.device)  # [N] of the B * C slots
    columns = slots + masks.block.start
    keys = fold_in(batch.keys[rows], batch.step)[:, None]
    keys = fold_in(keys, batch.positions(rows, columns))  # [B, C]
    found, found_confidence = propose(
        model, take(hidden, slots).flatten(0, 1)[index], keys.flatten()[index], decoding
    )
    tokens = torch.zeros_like(slots).flatten().index_copy(0, index, found).view_as(slots)
    confidence = torch.full((slots.numel(),), -torch.inf, device=slots.device)
    confidence = confidence.index_copy(0, index, found_confidence).view_as(slots)
    is_chosen = _chosen(confidence, k, decoding) & valid
    batch.commit(rows, columns, tokens, is_chosen)
    if decoding.top_k:
        row, slot = is_chosen.nonzero(as_tuple=True)
        places = columns[row, slot][:, None] - batch.start
        batch.commits.keep(rows[row], places, hidden[row, slots[row, slot]][:, None], None)
    if decoding.threshold is not None:
        places = rows[:, None], columns - batch.start
        batch.is_fallback[places] |= is_chosen & (confidence < decoding.threshold)


def _chosen(confidence: Tensor, k: int, decoding: Decoding) -> Tensor:
    """Return which slots to commit [B, C]: the k surest; all above a threshold, or else one.

    Args:
        confidence: [B, C], masked positions from left to right; -inf at the end of shorter rows.
        k: slots to commit without a threshold.
    """
    places = torch.arange(confidence.shape[1], device=confidence.device).expand_as(confidence)
    order = confidence.sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter(1, order, places)
    if decoding.threshold is None:
        return rank < k
    is_sure = confidence >= decoding.threshold
    is_first = (places if decoding.fallback == "leftmost" else rank) == 0
    return is_sure | (is_first & ~is_sure.any(1, keepdim=True))
