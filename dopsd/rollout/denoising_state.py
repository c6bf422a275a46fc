"""A batch of completions during denoising, and the states of their blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.tensors import left_pad, upload
from dopsd.core.types import Rollout
from dopsd.rollout.blocks import blocks_misfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.models.policy import Forward
    from dopsd.rollout.sampler import Decoding, GenerationRequest


class DenoisingState:
    """A batch during denoising: prompts and completions, padding, and the step of each commit.

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
        prompt, prompt_mask = left_pad(prompts, model.eos_id)  # [B, P]
        size, length, device = len(requests), decoding.gen_length, model.device
        blank = prompt.new_full((length,), model.mask_id)
        hints = torch.stack([blank if d.hints is None else d.hints.cpu() for d in requests])
        self.ids = upload(torch.cat([prompt, hints], 1), device)  # [B, T]
        is_even = len({len(ids) for ids in prompts}) == 1 or not decoding.mask_padding
        mask = torch.cat([prompt_mask, prompt_mask.new_ones(size, length)], 1)
        self.attention = None if is_even else upload(mask, device)  # [B, T]
        self.revealed_at = torch.full((size, length), decoding.steps, device=device)  # [B, G]
        self.keys = upload(torch.tensor([request.key for request in requests]), device)  # [B]
        self.start = self.ids.shape[1] - length

    @property
    def blocks(self) -> list[slice]:
        """Columns of each block."""
        size = self.decoding.block_length
        return [slice(first, first + size) for first in range(self.start, self.ids.shape[1], size)]

    def attention_of(self, rows: Tensor) -> Tensor | None:
        """Return the attention mask [B, T] of these rows; None without padding."""
        return None if self.attention is None else self.attention[rows]

    def commit(self, rows: Tensor, columns: Tensor, tokens: Tensor) -> None:
        """Commit the tokens of one step; rows, columns and tokens broadcast."""
        self.ids[rows, columns] = tokens
        self.revealed_at[rows, columns - self.start] = self.step

    def unfinished(self, rows: Tensor, end: int) -> Tensor:
        """Return the rows still to denoise, after the block that ends at column `end`.

        With `stop_after_eos` a row whose text has ended is filled with EOS and left out; only
        then, and once a block, the process waits for the GPU.
        """
        if not self.decoding.stop_after_eos or end == self.ids.shape[1]:
            return rows
        finished = (self.ids[rows, self.start : end] == self.model.eos_id).any(1)
        rest = self.ids[rows, end:]
        self.ids[rows, end:] = rest.masked_fill(finished[:, None], self.model.eos_id)
        return rows[~finished]

    def rollouts(self) -> list[Rollout]:
        """Return the rollout of each request, copied from the device at once."""
        completions = torch.cat([self.ids[:, self.start :], self.revealed_at], 1).cpu()  # [B, 2G]
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
