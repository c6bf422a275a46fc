"""denoise(): masks to rollouts, block by block.

Method notes, section 1 (semi-autoregressive low-confidence remasking, LLaDA). The language-model
head is computed at the masked positions of the current block only; one forward of the trunk serves
the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dopsd.core.rng import fold_in, uniform_table
from dopsd.core.tensors import left_pad
from dopsd.core.types import Rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.models.policy import Forward

CPU_NOISE, GPU_NOISE = (
    2**18,
    2**26,
)  # entries of noise made together: what a CPU's cache holds, what fills a GPU
HEAD_ENTRIES = (
    2**26
)  # logits in memory at a time: noise for a vocabulary of 126464 costs 30 bytes an entry


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
    threshold: float | None = None  # this and `cache`: fast_dllm.py
    cache: str = "none"

    @property
    def num_transfer_tokens(self) -> list[int]:
        """Tokens committed at each step of a block: spread evenly, the remainder to the first
        steps.
        """
        steps = self.steps // (self.gen_length // self.block_length)
        return [self.block_length // steps + (i < self.block_length % steps) for i in range(steps)]


@dataclass(frozen=True)
class GenerationRequest:
    """One row of a batch to be denoised: a tokenised prompt, the key of its noise, and tokens it is
    shown ahead.

    Hints stand in later blocks; each block is cleared when it is entered, so that none is copied
    into its own place.
    """

    problem_id: str
    attempt: int
    prompt_ids: Tensor  # [P]
    key: int
    hints: Tensor | None = None  # [G], mask_id where nothing is shown


class Sampler(Protocol):
    """Denoises requests from masks alone, in one batch; rollouts come in the order of the
    requests.
    """

    def __call__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> list[Rollout]: ...


def choose(logits: Tensor, keys: Tensor, decoding: Decoding) -> Tensor:
    """The token proposed at each position: argmax of logits plus Gumbel noise. logits [N, V], keys
    [N] -> [N].
    """
    if decoding.temperature == 0:
        return logits.argmax(-1)
    size = GPU_NOISE if logits.device.type == "cuda" else CPU_NOISE
    rows = max(1, size // logits.shape[-1])
    chunks = zip(logits.split(rows), keys.split(rows), strict=True)
    return torch.cat([_noisy_best(chunk, chunk_keys, decoding) for chunk, chunk_keys in chunks])


def _noisy_best(logits: Tensor, keys: Tensor, decoding: Decoding) -> Tensor:
    u = uniform_table(keys, logits.shape[-1])  # [N, V]
    if (
        decoding.gumbel_dtype == "bfloat16"
    ):  # as published: exp(l) / (-ln u)^t in bf16, where u has 8 bits
        u = (u * 256).floor().div(256).bfloat16()
        return (logits.bfloat16().exp() / (-u.log()) ** decoding.temperature).argmax(-1)
    return u.log_().neg_().log_().mul_(-decoding.temperature).add_(logits).argmax(-1)


def propose(
    model: Forward, hidden: Tensor, keys: Tensor, decoding: Decoding
) -> tuple[Tensor, Tensor]:
    """Tokens and their noise-free confidence at masked positions, a part at a time. hidden [N, D],
    keys [N] -> [N], [N].
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
    logits[:, list(model.suppress_tokens)] = -torch.inf
    tokens = choose(logits, keys, decoding)
    confidence = logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return tokens, confidence


@dataclass(frozen=True)
class StepInput:
    """What one step sees: rows of equal length, and the masked positions that it may commit."""

    ids: Tensor  # [B, T]
    mask: Tensor | None  # [B, T], None without padding
    slots: Tensor  # [B, m] positions in T
    keys: Tensor  # [B]


def most_confident(
    model: Forward, step: StepInput, k: int, decoding: Decoding
) -> tuple[Tensor, Tensor]:
    """Return the k most confident of the slots of every row [B, k] and their tokens [B, k]; ties go
    to the lower position.
    """
    ids, slots = step.ids, step.slots
    rows = torch.arange(len(ids), device=ids.device)[:, None]
    hidden = model.hidden(ids, step.mask)[rows, slots]  # [B, m, D]
    positions = slots - (
        ids.shape[1] - decoding.gen_length
    )  # position in the completion, whatever the padding
    noise_keys = fold_in(step.keys[:, None], positions)  # [B, m]
    tokens, confidence = propose(model, hidden.flatten(0, 1), noise_keys.flatten(), decoding)
    order = confidence.view_as(slots).sort(dim=1, descending=True, stable=True).indices[:, :k]
    return slots.gather(1, order), tokens.view_as(slots).gather(1, order)


class DenoisingState:
    """A batch in denoising: prompts and completions, where they are padded, and the step that
    committed each position.
    """

    def __init__(
        self, model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
    ) -> None:
        self.model, self.requests, self.decoding, self.step = model, requests, decoding, 0
        prompt, prompt_mask = left_pad(
            [request.prompt_ids for request in requests], model.eos_id
        )  # [B, P]
        size, length, device = len(requests), decoding.gen_length, prompt.device
        blank = prompt.new_full((length,), model.mask_id)
        self.ids = torch.cat(
            [prompt, torch.stack([blank if d.hints is None else d.hints for d in requests])], 1
        )  # [B, T]
        is_even = bool(prompt_mask.all()) or not decoding.mask_padding
        self.attention = (
            None if is_even else torch.cat([prompt_mask, prompt_mask.new_ones(size, length)], 1)
        )  # [B, T]
        self.revealed_at = torch.full((size, length), decoding.steps, device=device)  # [B, G]
        self.keys = torch.tensor([request.key for request in requests], device=device)  # [B]
        self.start = self.ids.shape[1] - length

    @property
    def blocks(self) -> list[slice]:
        """The columns of each block."""
        size = self.decoding.block_length
        return [slice(first, first + size) for first in range(self.start, self.ids.shape[1], size)]

    def attention_of(self, rows: Tensor) -> Tensor | None:
        return None if self.attention is None else self.attention[rows]

    def commit(self, rows: Tensor, columns: Tensor, tokens: Tensor) -> None:
        """Tokens of one step; rows, columns and tokens broadcast."""
        self.ids[rows, columns] = tokens
        self.revealed_at[rows, columns - self.start] = self.step

    def unfinished(self, rows: Tensor, end: int) -> Tensor:
        """These rows, with `stop_after_eos` without those whose text has ended before column `end`:
        they are filled up.
        """
        if not self.decoding.stop_after_eos:
            return rows
        finished = (self.ids[rows, self.start : end] == self.model.eos_id).any(1)
        self.ids[rows[finished], end:] = self.model.eos_id
        return rows[~finished]

    def rollouts(self) -> list[Rollout]:
        return [
            Rollout(
                request.problem_id,
                request.attempt,
                request.prompt_ids,
                row[self.start :].clone(),
                steps.clone(),
            )
            for request, row, steps in zip(self.requests, self.ids, self.revealed_at, strict=True)
        ]


@torch.no_grad()
def denoise(
    model: Forward, requests: Sequence[GenerationRequest], decoding: Decoding
) -> list[Rollout]:
    """Denoise every draw from masks alone, in one batch.

    Results do not depend on the batch: noise is keyed by the draw, padding is masked (unless
    `mask_padding` is off, as in the published evaluation, where a row sees the padding that its
    neighbours gave it). With `stop_after_eos` a row whose block ends with an end-of-sequence token
    and no mask before it is finished: what follows is filled with EOS.
    """
    state = DenoisingState(model, requests, decoding)
    active = torch.arange(len(requests), device=state.ids.device)
    for block in state.blocks:
        state.ids[active, block] = model.mask_id
        for k in decoding.num_transfer_tokens:
            active_ids = state.ids[active]
            slots = (active_ids[:, block] == model.mask_id).nonzero()[:, 1].view(
                len(active), -1
            ) + block.start  # [B, m]
            keys = fold_in(state.keys[active], state.step)
            step = StepInput(active_ids, state.attention_of(active), slots, keys)
            positions, tokens = most_confident(model, step, k, decoding)
            state.commit(active[:, None], positions, tokens)
            state.step += 1
        active = state.unfinished(active, block.stop)
        if len(active) == 0:
            break
    return state.rollouts()
