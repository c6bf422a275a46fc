"""denoise(): masks to rollouts, block by block; attempts(): pass@k in waves.

Method notes, section 1 (semi-autoregressive low-confidence remasking, LLaDA). The language-model head is computed at
the masked positions of the current block only; one forward of the trunk serves the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dopsd.keyed import fold, text_key, uniform
from dopsd.progress import say
from dopsd.types import Policy, Problem, Progressed, Rollout

HEAD_ENTRIES = 2**26  # logits in memory at a time: noise for a vocabulary of 126464 costs 30 bytes an entry


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

    @property
    def schedule(self) -> list[int]:
        """Tokens committed at each step of a block: spread evenly, the remainder to the first steps."""
        steps = self.steps // (self.gen_length // self.block_length)
        return [self.block_length // steps + (i < self.block_length % steps) for i in range(steps)]


@dataclass(frozen=True)
class Draw:
    """One row of a batch to be denoised: a tokenised prompt, the key of its noise, and tokens it is shown ahead.

    Hints stand in later blocks; each block is cleared when it is entered, so that none is copied into its own place.
    """

    problem_id: str
    attempt: int
    prompt_ids: Tensor  # [P]
    key: int
    hints: Tensor | None = None  # [G], mask_id where nothing is shown


def left_pad(rows: Sequence[Tensor], value: int) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as one tensor [B, T], padded on the left, and the mask that is False on padding."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), value, dtype=torch.long, device=rows[0].device)
    mask = torch.zeros((len(rows), width), dtype=torch.bool, device=rows[0].device)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = row
        mask[i, width - len(row) :] = True
    return ids, mask


def choose(logits: Tensor, keys: Tensor, decoding: Decoding) -> Tensor:
    """The token proposed at each position: argmax of logits plus Gumbel noise. logits [N, V], keys [N] -> [N]."""
    if decoding.temperature == 0:
        return logits.argmax(-1)
    vocabulary = torch.arange(logits.shape[-1], device=logits.device)
    u = uniform(fold(keys[:, None], vocabulary))  # [N, V]
    if decoding.gumbel_dtype == "bfloat16":  # as published: exp(l) / (-ln u)^t in bf16, where u has 8 bits
        u = (u * 256).floor().div(256).bfloat16()
        return (logits.bfloat16().exp() / (-u.log()) ** decoding.temperature).argmax(-1)
    return (logits - decoding.temperature * (-u.log()).log()).argmax(-1)


def _propose(policy: Policy, hidden: Tensor, keys: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Tokens and their noise-free confidence at masked positions, a part at a time. hidden [N, D], keys [N] -> [N], [N]."""
    rows = max(1, HEAD_ENTRIES // policy.vocabulary)
    parts = [_propose_part(policy, h, k, decoding) for h, k in zip(hidden.split(rows), keys.split(rows), strict=True)]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([confidence for _, confidence in parts])


def _propose_part(policy: Policy, hidden: Tensor, keys: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    logits = policy.head(hidden).float()  # [N, V]
    logits[:, list(policy.banned_ids)] = -torch.inf
    tokens = choose(logits, keys, decoding)
    confidence = logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return tokens, confidence


def _step(policy: Policy, ids: Tensor, mask: Tensor | None, slots: Tensor, keys: Tensor, k: int, decoding: Decoding):
    """Commit the k most confident of the masked slots of every row.

    ids [B, T], slots [B, m] positions in T, keys [B] -> chosen positions [B, k] and their tokens [B, k].
    Ties go to the lower position.
    """
    rows = torch.arange(len(ids), device=ids.device)[:, None]
    hidden = policy.hidden(ids, mask)[rows, slots]  # [B, m, D]
    place = slots - (ids.shape[1] - decoding.gen_length)  # position in the completion, whatever the padding
    noise_keys = fold(keys[:, None], place)  # [B, m]
    tokens, confidence = _propose(policy, hidden.flatten(0, 1), noise_keys.flatten(), decoding)
    order = confidence.view_as(slots).sort(dim=1, descending=True, stable=True).indices[:, :k]
    return slots.gather(1, order), tokens.view_as(slots).gather(1, order)


@torch.no_grad()
def denoise(policy: Policy, draws: Sequence[Draw], decoding: Decoding) -> list[Rollout]:
    """Denoise every draw from masks alone, in one batch.

    Results do not depend on the batch: noise is keyed by the draw, padding is masked (unless `mask_padding` is off, as
    in the published evaluation, where a row sees the padding that its neighbours gave it). With `stop_after_eos` a row
    whose block ends with an end-of-sequence token and no mask before it is finished: what follows is filled with EOS.
    """
    device = draws[0].prompt_ids.device
    prompt, mask = left_pad([draw.prompt_ids for draw in draws], policy.eos_id)  # [B, P]
    size, length = len(draws), decoding.gen_length
    blank = prompt.new_full((length,), policy.mask_id)
    ids = torch.cat([prompt, torch.stack([blank if d.hints is None else d.hints for d in draws])], 1)  # [B, T]
    attention = None if bool(mask.all()) or not decoding.mask_padding else torch.cat([mask, mask.new_ones(size, length)], 1)
    revealed_at = torch.full((size, length), decoding.steps, device=device)  # [B, G]
    keys = torch.tensor([draw.key for draw in draws], device=device)  # [B]
    active = torch.arange(size, device=device)
    step, start = 0, ids.shape[1] - length
    for block in range(start, ids.shape[1], decoding.block_length):
        ids[active, block : block + decoding.block_length] = policy.mask_id
        for k in decoding.schedule:
            part = ids[active]
            window = part[:, block : block + decoding.block_length] == policy.mask_id
            slots = window.nonzero()[:, 1].view(len(active), -1) + block  # [B, m]
            rows_mask = None if attention is None else attention[active]
            where, tokens = _step(policy, part, rows_mask, slots, fold(keys[active], step), k, decoding)
            ids[active[:, None], where] = tokens
            revealed_at[active[:, None], where - start] = step
            step += 1
        if decoding.stop_after_eos:
            done = (ids[active, start : block + decoding.block_length] == policy.eos_id).any(1)
            ids[active[done], block + decoding.block_length :] = policy.eos_id
            active = active[~done]
            if len(active) == 0:
                break
    return [
        Rollout(draw.problem_id, draw.attempt, draw.prompt_ids, row[start:].clone(), steps.clone())
        for draw, row, steps in zip(draws, ids, revealed_at, strict=True)
    ]


@dataclass(frozen=True)
class PassK:
    """How often a problem is tried, and at which temperature."""

    attempts: int
    first_temperature: float
    retry_temperature: float
    stop_at_first_correct: bool


def attempts(
    policy: Policy,
    prompts: Sequence[tuple[Problem, Tensor]],
    decoding: Decoding,
    pass_k: PassK,
    key: tuple[int, int],
    is_correct: Callable[[Problem, Rollout], bool],
    progressed: Progressed | None = None,
) -> dict[str, list[Rollout]]:
    """Up to `attempts` rollouts a problem, in waves: attempt n of every problem that still needs one, together.

    key is (seed, update). The stopping law is that of one problem after the other, and so are the rollouts.
    """
    found: dict[str, list[Rollout]] = {problem.id: [] for problem, _ in prompts}
    waiting = list(prompts)
    waves = [[n] for n in range(pass_k.attempts)]
    if not pass_k.stop_at_first_correct:  # nothing to wait for: the first, then all the others at once
        waves = [[0], list(range(1, pass_k.attempts))]
        if pass_k.first_temperature == pass_k.retry_temperature:
            waves = [list(range(pass_k.attempts))]
    for wave in filter(None, waves):
        temperature = pass_k.retry_temperature if wave[0] else pass_k.first_temperature
        draws = [Draw(problem.id, n, ids, text_key(*key, problem.id, n)) for problem, ids in waiting for n in wave]
        for rollout in denoise_all(policy, draws, _at(decoding, temperature), progressed):
            found[rollout.problem_id].append(rollout)
        if pass_k.stop_at_first_correct:
            waiting = [(p, ids) for p, ids in waiting if not is_correct(p, found[p.id][-1])]
        if not waiting:
            break
    return found


def denoise_all(
    policy: Policy, draws: Sequence[Draw], decoding: Decoding, progressed: Progressed | None = None
) -> list[Rollout]:
    """Any number of draws, in batches of similar prompt length; rollouts come back in the order of the draws."""
    order = sorted(range(len(draws)), key=lambda i: len(draws[i].prompt_ids))
    done: dict[int, Rollout] = {}
    for start in range(0, len(order), decoding.batch_size):
        part = order[start : start + decoding.batch_size]
        done.update(zip(part, _denoise_fitting(policy, [draws[i] for i in part], decoding), strict=True))
        if progressed:
            progressed(len(part))
    return [done[i] for i in range(len(draws))]


def _denoise_fitting(policy: Policy, draws: Sequence[Draw], decoding: Decoding) -> list[Rollout]:
    """One batch, or where memory runs out the same in two halves: with masked padding no row depends on the others."""
    try:
        return denoise(policy, draws, decoding)
    except torch.OutOfMemoryError:
        if len(draws) == 1 or not decoding.mask_padding:
            raise
    half = -(-len(draws) // 2)  # out of the except block: until then the failed batch keeps its memory
    say(f"{len(draws)} rollouts at once did not fit into memory: trying {half}; set a smaller batch_size")
    return [rollout for part in (draws[:half], draws[half:]) for rollout in denoise(policy, part, decoding)]


def _at(decoding: Decoding, temperature: float) -> Decoding:
    return Decoding(**{**decoding.__dict__, "temperature": temperature})
