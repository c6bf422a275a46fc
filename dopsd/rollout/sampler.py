"""The exact sampler, denoise(): from masks to rollouts, block by block.

Semi-autoregressive low-confidence remasking as in LLaDA (arXiv 2502.09992). The head is
computed only at the masked positions of the current block; one forward of the trunk serves the
whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.errors import Code
from dopsd.core.rng import bfloat16_uniform, fold_in, uniform_table
from dopsd.core.tensors import left_pad, pack, take, upload
from dopsd.core.types import NEVER, Rollout
from dopsd.rollout.config import Decoding, blocks_misfit, shared_block
from dopsd.rollout.likeliest import HEAD_ENTRIES, KeptCommits, sampleable

if TYPE_CHECKING:
    from dopsd.models.policy import Forward

# entries of noise made at once: what a CPU's cache holds, what fills a GPU
CPU_NOISE, GPU_NOISE = 2**18, 2**26


@dataclass(frozen=True)
class GenerationRequest:
    """One row of a batch: a prompt, the key of its noise, and tokens that it may see in advance.

    Hints are of later blocks. Each block is cleared when denoising enters it, so that no hint is
    copied to its own position.
    """

    problem_id: str
    attempt: int
    prompt_ids: Tensor  # [P]
    key: int
    hints: Tensor | None = None  # [G], mask_id where there is no hint


# denoises requests in one batch, and returns rollouts in their order
Sampler = Callable[["Forward", Sequence[GenerationRequest], Decoding], list[Rollout]]


def choose(logits: Tensor, keys: Tensor, decoding: Decoding) -> Tensor:
    """Return the token [N] at each position: argmax of logits [N, V] plus noise of these keys."""
    if decoding.temperature == 0:
        return logits.argmax(-1)
    size = GPU_NOISE if logits.device.type == "cuda" else CPU_NOISE
    rows = max(1, size // logits.shape[-1])
    chunks = zip(logits.split(rows), keys.split(rows), strict=True)
    return torch.cat([_noisy_best(chunk, chunk_keys, decoding) for chunk, chunk_keys in chunks])


def _noisy_best(logits: Tensor, keys: Tensor, decoding: Decoding) -> Tensor:
    u = uniform_table(keys, logits.shape[-1])  # [N, V]
    if decoding.gumbel_dtype == "bfloat16":  # as published: exp(l) / (-ln u)^t in bfloat16
        u = bfloat16_uniform(u)
        return (logits.bfloat16().exp() / (-u.log()) ** decoding.temperature).argmax(-1)
    return u.log_().neg_().log_().mul_(-decoding.temperature).add_(logits).argmax(-1)


def propose(
    model: Forward, hidden: Tensor, keys: Tensor, decoding: Decoding
) -> tuple[Tensor, Tensor]:
    """Return tokens [N] and what ranks them [N] at N positions, computed in parts."""
    rows = max(1, HEAD_ENTRIES // model.vocabulary)
    outputs = [
        _propose_part(model, h, k, decoding)
        for h, k in zip(hidden.split(rows), keys.split(rows), strict=True)
    ]
    return torch.cat([tokens for tokens, _ in outputs]), torch.cat(
        [confidence for _, confidence in outputs]
    )


def _propose_part(
    model: Forward, hidden: Tensor, keys: Tensor, decoding: Decoding
) -> tuple[Tensor, Tensor]:
    logits = sampleable(model, hidden)  # [N, V]
    if decoding.top_p is not None and decoding.top_p < 1:
        logits = nucleus(logits, decoding.top_p, decoding.temperature)
    tokens = choose(logits, keys, decoding)
    return tokens, certainty(logits, tokens, decoding)


def nucleus(logits: Tensor, share: float, temperature: float) -> Tensor:
    """Return logits [N, V] with -inf outside the likeliest tokens that hold this share.

    The token that reaches the share is the last one inside (arXiv 1904.09751). Probabilities are
    those at the temperature; at 0 as they are.
    """
    ranked, order = (
        (logits / (temperature or 1)).softmax(-1).sort(dim=-1, descending=True, stable=True)
    )
    is_out = ranked.cumsum(-1) - ranked >= share
    return logits.masked_fill(is_out.scatter(-1, order, is_out), -torch.inf)


def certainty(logits: Tensor, tokens: Tensor, decoding: Decoding) -> Tensor:
    """Return what ranks the proposed tokens [N]; higher ones are committed first.

    `probability` is that of the token, without noise and temperature (LLaDA);
    `tempered_probability` is at the temperature (SDAR, LLaDA2.0). `entropy`, negative, and
    `margin`, between the two likeliest tokens, are of the distribution at the temperature (Dream,
    arXiv 2508.15487).
    """
    if decoding.order == "probability":
        return logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    probabilities = (logits / (decoding.temperature or 1)).softmax(-1)
    if decoding.order == "tempered_probability":
        return probabilities.gather(-1, tokens[:, None])[:, 0]
    if decoding.order == "entropy":
        entropy: Tensor = torch.special.entr(probabilities).sum(-1)
        return -entropy
    first, second = probabilities.topk(2, -1).values.unbind(-1)
    return first - second


@dataclass(frozen=True)
class StepInput:
    """The input of one step: the masked positions that it may commit."""

    hidden: Tensor  # [B, m, D], hidden states
    slots: Tensor  # [B, m] positions in the row
    positions: Tensor  # [B, m] the same, from the start of the completion: they key the noise
    keys: Tensor  # [B]
    valid: Tensor | None = None  # [B, m], False on slots that are no masks; None: all are


def most_confident(
    model: Forward, step: StepInput, k: int, decoding: Decoding
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the k most confident slots of every row [B, k], their tokens and which are valid.

    Ties go to the lower position. In a row with fewer masks the last ones are not valid.
    """
    slots = step.slots
    noise_keys = fold_in(step.keys[:, None], step.positions)  # [B, m]
    tokens, confidence = propose(model, step.hidden.flatten(0, 1), noise_keys.flatten(), decoding)
    confidence = confidence.view_as(slots)
    if step.valid is not None:
        confidence = confidence.masked_fill(~step.valid, -torch.inf)
    order = confidence.sort(dim=1, descending=True, stable=True).indices[:, :k]
    valid = None if step.valid is None else step.valid.gather(1, order)
    return slots.gather(1, order), tokens.view_as(slots).gather(1, order), valid


@torch.no_grad()
def denoise(
    model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
) -> list[Rollout]:
    """Denoise every request from masks, in one batch.

    But for rounding a row does not depend on its batch: noise is keyed by the request, and padding
    is masked (without `mask_padding`, as published, a row sees its padding). With `stop_after_eos`
    the positions after the block in which a text ends become EOS.
    """
    batch = SampledBatch(model, requests, decoding)
    growing = None if model.block_size is None else GrowingHidden(model, batch.start)
    active = torch.arange(len(requests), device=batch.ids.device)
    for block in batch.blocks:
        batch.enter(active, block)
        num_masked = decoding.block_length  # known here: counting masks would wait for the GPU
        for k in decoding.num_transfer_tokens:
            # hidden states of the block, and of its masked positions
            active_ids, mask = batch.ids[active], batch.attention_of(active)
            slots, valid = pack(active_ids[:, block] == model.mask_id, num_masked)
            if growing is not None:
                hidden = growing.of(active_ids, mask, block)
            else:
                hidden = model.hidden(active_ids, mask)[:, block]
            masked = take(hidden, slots)
            # propose a token at every mask, and commit the k most confident ones
            slots, keys = slots + block.start, fold_in(batch.keys[active], batch.step)
            known = valid if batch.is_shared else None  # else all rows have as many masks
            step = StepInput(masked, slots, batch.positions(active, slots), keys, known)
            columns, tokens, chosen = most_confident(model, step, k, decoding)
            batch.commit(active, columns, tokens, chosen)
            if decoding.top_k:
                committed = take(hidden, columns - block.start)
                batch.commits.keep(active, columns - batch.start, committed, chosen)
            num_masked -= k
            batch.step += 1
        # rows whose text has ended leave the batch
        rest = batch.unfinished(active, block.stop)
        if growing is not None:
            growing.keep(active, rest)
        active = rest
        if len(active) == 0:
            break
    return batch.rollouts()


class SampledBatch:
    """A batch during denoising: prompts and completions, padding, and the step of each commit.

    Where a model counts its blocks from the start of the sequence, the end of a prompt may stand in
    the first block of its completion. Rows are then padded so that the blocks of all have the same
    columns; the last block has tokens after the completion, which are denoised with it, as in the
    published samplers, and cut off.
    """

    def __init__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> None:
        if fault := blocks_misfit(model.block_size, decoding.gen_length, decoding.block_length):
            raise Code.CONTRADICTION.error(fault)
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
        self.revealed_at = torch.full((len(rows), width), NEVER, device=device)  # [B, W]
        self.keys = upload(torch.tensor([request.key for request in requests]), device)  # [B]
        self.commits = KeptCommits(model, decoding.top_k, self.revealed_at.shape)

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
        before = self.ids[rows, block]
        masked = torch.full_like(before, self.model.mask_id)  # a number waits for the GPU
        if self.is_shared:
            columns = slice(block.start - self.start, block.stop - self.start)
            masked = torch.where(self.is_prompt[rows, columns], before, masked)
        self.ids[rows, block] = masked

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
        found = [
            Rollout(
                request.problem_id,
                request.attempt,
                request.prompt_ids.cpu(),
                *(part.clone() for part in row.chunk(2)),
            )
            for request, row in zip(self.requests, completions, strict=True)
        ]
        return self.commits.given(found, self.completion)


class GrowingHidden:
    """Hidden states of one block after the other under block-causal attention, with an exact cache.

    A finished block never changes, and no token sees a later one. So the keys and values of what is
    before a block of the model are computed once, with the first step in that block. The blocks of
    sampling may be parts of the model's.
    """

    def __init__(self, model: Forward, start: int) -> None:
        assert model.block_size is not None
        self.model, self.kv_cache, self.size = model, model.new_kv_cache(), model.block_size
        self.start = start
        self.end = 0  # positions before it have their last keys and values

    def of(self, ids: Tensor, attention_mask: Tensor | None, block: slice) -> Tensor:
        """Return the hidden states [B, L, D] of a block of ids [B, T].

        Args:
            ids: [B, T], whose tokens before the block are final.
            attention_mask: [B, T], False on padding; None without padding.
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
