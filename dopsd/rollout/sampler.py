"""The exact sampler, denoise(): from masks to rollouts, block by block.

Semi-autoregressive low-confidence remasking as in LLaDA (method notes, section 1). The head is
computed only at the masked positions of the current block; one forward of the trunk serves the
whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dopsd.core.rng import bfloat16_uniform, fold_in, uniform_table
from dopsd.core.tensors import index_of, left_pad, pack, upload
from dopsd.core.types import Rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.models.policy import Forward

# entries of noise made at once: what a CPU's cache holds, what fills a GPU
CPU_NOISE, GPU_NOISE = 2**18, 2**26
HEAD_ENTRIES = 2**26  # logits in memory at once; with noise an entry takes 30 bytes


@dataclass(frozen=True)
class Decoding:
    """How a completion is denoised: lengths in tokens, `steps` over the whole completion."""

    gen_length: int
    block_length: int
    steps: int
    temperature: float = 0.0
    gumbel_dtype: str = "float32"
    stop_after_eos: bool = False
    batch_size: int = 64
    mask_padding: bool = True
    threshold: float | None = None  # for this and `cache` see fast_dllm.py
    cache: str = "none"
    fallback: str = "surest"  # token committed where none reaches the threshold: surest, leftmost

    @property
    def num_transfer_tokens(self) -> list[int]:
        """Tokens committed at each step of a block; the remainder goes to the first steps."""
        steps = self.steps // (self.gen_length // self.block_length)
        return [self.block_length // steps + (i < self.block_length % steps) for i in range(steps)]


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


class Sampler(Protocol):
    """A function that denoises requests in one batch, and returns rollouts in their order."""

    def __call__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> list[Rollout]:
        """Return one rollout per request."""


def choose(logits: Tensor, keys: Tensor, decoding: Decoding) -> Tensor:
    """Return the proposed token [N] at each position: argmax of logits plus Gumbel noise.

    Args:
        logits: [N, V].
        keys: [N], keys of the noise.
        decoding: temperature and gumbel_dtype.
    """
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
    """Return tokens [N] and their noise-free probabilities [N] at N positions, computed in parts.

    Args:
        model: the model, whose head is applied.
        hidden: [N, D].
        keys: [N], keys of the noise.
        decoding: temperature and gumbel_dtype.
    """
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
    logits = model.head(hidden).float()  # [N, V]
    suppressed = index_of(tuple(model.suppress_tokens), logits.device)
    logits.index_fill_(1, suppressed, -torch.inf)
    tokens = choose(logits, keys, decoding)
    confidence = logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return tokens, confidence


@dataclass(frozen=True)
class StepInput:
    """The input of one step: rows of equal length, and the masked positions that it may commit."""

    ids: Tensor  # [B, T]
    mask: Tensor | None  # [B, T], None without padding
    slots: Tensor  # [B, m] positions in T
    keys: Tensor  # [B]


def most_confident(
    model: Forward, step: StepInput, k: int, decoding: Decoding
) -> tuple[Tensor, Tensor]:
    """Return the k most confident slots of every row [B, k] and their tokens [B, k].

    Ties go to the lower position.
    """
    ids, slots = step.ids, step.slots
    rows = torch.arange(len(ids), device=ids.device)[:, None]
    hidden = model.hidden(ids, step.mask)[rows, slots]  # [B, m, D]
    # counted from the start of the completion, so that padding does not change the noise
    positions = slots - (ids.shape[1] - decoding.gen_length)
    noise_keys = fold_in(step.keys[:, None], positions)  # [B, m]
    tokens, confidence = propose(model, hidden.flatten(0, 1), noise_keys.flatten(), decoding)
    order = confidence.view_as(slots).sort(dim=1, descending=True, stable=True).indices[:, :k]
    return slots.gather(1, order), tokens.view_as(slots).gather(1, order)


class DenoisingState:
    """A batch during denoising: prompts and completions, padding, and the step of each commit."""

    def __init__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> None:
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


@torch.no_grad()
def denoise(
    model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
) -> list[Rollout]:
    """Denoise every request from masks, in one batch.

    A row does not depend on its batch: noise is keyed by the request, and padding is masked
    (without `mask_padding`, as published, a row sees its padding). With `stop_after_eos` the
    positions after the block in which a text ends become EOS.
    """
    state = DenoisingState(model, requests, decoding)
    active = torch.arange(len(requests), device=state.ids.device)
    for block in state.blocks:
        state.ids[active, block] = model.mask_id
        num_masked = decoding.block_length  # known here: counting masks would wait for the GPU
        for k in decoding.num_transfer_tokens:
            active_ids = state.ids[active]
            slots = pack(active_ids[:, block] == model.mask_id, num_masked)[0] + block.start
            keys = fold_in(state.keys[active], state.step)
            step = StepInput(active_ids, state.attention_of(active), slots, keys)
            positions, tokens = most_confident(model, step, k, decoding)
            state.commit(active[:, None], positions, tokens)
            num_masked -= k
            state.step += 1
        active = state.unfinished(active, block.stop)
        if len(active) == 0:
            break
    return state.rollouts()
