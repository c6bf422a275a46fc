"""A batch of completions during denoising, and the states of their blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.tensors import left_pad, upload
from dopsd.core.types import Rollout
from dopsd.rollout.blocks import blocks_misfit, shared_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.models.policy import Forward
    from dopsd.rollout.sampler import Decoding, GenerationRequest


class DenoisingState:
    """A batch during denoising: prompts and completions, padding, and the step of each commit.

    Where a model counts its blocks from the start of the sequence, the end of a prompt may stand in
    the first block of its completion. Rows are then padded so that the blocks of all have the same
    columns; the last block has tokens after the completion, which are denoised with it, as in the
    published samplers, and cut off.

    Raises:
        DopsdError: if the blocks are not those of a block-causal model, or parts of them.
    """

    def __init__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> None:
        if fault := blocks_misfit(model.block_size, decoding.gen_length, decoding.block_length):
            raise DopsdError(fault, code=Code.CONTRADICTION)
        self.model, self.requests, self.decoding, self.step = model, requests, decoding, 0
        prompts = [request.prompt_ids.cpu() for request in requests]
        size, length, device = shared_block(model), decoding.gen_length, model.device
        shared = [len(ids) % size for ids in prompts]
        self.is_shared = any(shared)
        width = length + size if self.is_shared else length  # W, columns of blocks
        blank = torch.full((width,), model.mask_id)
        hints = [blank[:0] if d.hints is None else d.hints.cpu() for d in requests]
        rows = [
            torch.cat([prompt, hint, blank[len(hint) + n :]])
            for prompt, hint, n in zip(prompts, hints, shared, strict=True)
        ]
        ids, mask = left_pad(rows, model.eos_id)
        is_even = len({len(row) for row in rows}) == 1 or not decoding.mask_padding
        self.ids = upload(ids, device)  # [B, T]
        self.attention = None if is_even else upload(mask, device)  # [B, T]
        self.start = ids.shape[1] - width
        self.shared = upload(torch.tensor(shared)[:, None], device)  # [B, 1]
        places = torch.arange(width, device=device)
        self.is_prompt = places < self.shared  # [B, W]
        self.completion = places[:length] + self.shared  # [B, G], its columns, from `start`
        per_block = len(decoding.num_transfer_tokens)
        self.never = max(decoding.steps, len(self.blocks) * per_block)  # a step after all
        self.revealed_at = torch.full((len(rows), width), self.never, device=device)  # [B, W]
        self.keys = upload(torch.tensor([request.key for request in requests]), device)  # [B]

    @property
    def blocks(self) -> list[slice]:
        """Columns of each block."""
        size = self.decoding.block_length
        return [slice(first, first + size) for first in range(self.start, self.ids.shape[1], size)]

    def attention_of(self, rows: Tensor) -> Tensor | None:
        """Return the attention mask [B, T] of these rows; None without padding."""
        return None if self.attention is None else self.attention[rows]

    def enter(self, rows: Tensor, block: slice) -> None:
        """Mask a block of these rows, but for the end of the prompt: hints in it are over."""
        if not self.is_shared:
            self.ids[rows, block] = self.model.mask_id
            return
        is_prompt = self.is_prompt[rows, block.start - self.start : block.stop - self.start]
        self.ids[rows, block] = torch.where(is_prompt, self.ids[rows, block], self.model.mask_id)

    def positions(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return columns [B, C] of these rows, counted from the start of their completion."""
        return columns - self.start - self.shared[rows]

    def commit(self, rows: Tensor, columns: Tensor, tokens: Tensor, chosen: Tensor | None) -> None:
        """Commit the tokens of one step.

        Args:
            rows: [B].
            columns: [B, C].
            tokens: [B, C].
            chosen: [B, C], False where nothing is committed; None: all are.
        """
        rows, places = rows[:, None], columns - self.start
        step = torch.full_like(tokens, self.step)
        if chosen is not None:
            tokens = torch.where(chosen, tokens, self.ids[rows, columns])
            step = torch.where(chosen, step, self.revealed_at[rows, places])
        self.ids[rows, columns] = tokens
        self.revealed_at[rows, places] = step

    def unfinished(self, rows: Tensor, end: int) -> Tensor:
        """Return the rows still to denoise, after the block that ends at column `end`.

        With `stop_after_eos` a row whose text has ended is filled with EOS and left out; only
        then, and once a block, the process waits for the GPU.
        """
        if not self.decoding.stop_after_eos or end == self.ids.shape[1]:
            return rows
        is_end = self.ids[rows, self.start : end] == self.model.eos_id
        finished = (is_end & ~self.is_prompt[rows, : end - self.start]).any(1)
        rest = self.ids[rows, end:]
        self.ids[rows, end:] = rest.masked_fill(finished[:, None], self.model.eos_id)
        return rows[~finished]

    def rollouts(self) -> list[Rollout]:
        """Return the rollout of each request, copied from the device at once."""
        parts = (self.ids[:, self.start :], self.revealed_at)
        completions = torch.cat([part.gather(1, self.completion) for part in parts], 1).cpu()
        return [
            Rollout(
                request.problem_id,
                request.attempt,
                request.prompt_ids.cpu(),
                *(part.clone() for part in row.chunk(2)),
            )
            for request, row in zip(self.requests, completions, strict=True)
        ]


class GrowingStates:
    """States of one block after the other under block-causal attention, with an exact cache.

    A finished block never changes, and no token sees a later one. So the keys and values of what is
    before a block of the model are computed once, with the first step in that block. The blocks of
    sampling may be parts of the model's.

    Args:
        model: a block-causal model.
        start: the column of the first block.
    """

    def __init__(self, model: Forward, start: int) -> None:
        assert model.block_size is not None
        self.model, self.kv_cache, self.size = model, model.new_kv_cache(), model.block_size
        self.start = start
        self.end = 0  # positions before it have their last keys and values

    def of(self, ids: Tensor, attention_mask: Tensor | None, block: slice) -> Tensor:
        """Return the states [B, L, D] of a block of ids [B, T].

        Args:
            ids: [B, T], whose tokens before the block are final.
            attention_mask: [B, T], False on padding; None without padding.
            block: the columns of the block.
        """
        first = block.start - (block.start - self.start) % self.size
        window = slice(self.end, first + self.size)
        mask = None if attention_mask is None else attention_mask[:, : window.stop]
        hidden = self.model.hidden(ids[:, window], mask, self.kv_cache, window)
        self.end = first
        return hidden[:, block.start - window.start : block.stop - window.start]

    def keep(self, before: Tensor, after: Tensor) -> None:
        """Keep the rows `after` [N] of the rows `before` [B], in their order."""
        if len(after) < len(before):
            self.kv_cache.keep(torch.isin(before, after).nonzero()[:, 0])
