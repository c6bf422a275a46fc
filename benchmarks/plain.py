"""The published procedure, literally: batch 1, attempts one after the other, the whole sequence's
logits, chunks in memory.

What ours is measured against (`rollout.py`, `update.py`, `evaluate.py`): same model, same LoRA
layers, same attention kernel, same threads. Nothing is slowed down on purpose: these are LLaDA's
and d-OPSD's loops as they are written down, without a progress bar, in the model's own dtype. Two
things differ from the published code, for the sake of the same
result: ids that may not be sampled are banned, and equal confidence goes to the lower position.
Evaluation has the published batch of 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.sampler import Decoding


@dataclass(frozen=True)
class Trajectory:
    """A completion, and a copy of the whole sequence as it was before each step."""

    ids: Tensor  # [P+G]
    states: list[Tensor]  # S x [P+G]


def logits_of(policy: LlmPolicy, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B, T] -> [B, T, V]: the head at every position."""
    return policy.head(policy.hidden(ids, mask))


def noisy(logits: Tensor, temperature: float) -> Tensor:
    """Gumbel noise as the published samplers write it: exp(l) / (-ln u)^t, whose largest entry is
    the sample.
    """
    if temperature == 0:
        return logits
    u = torch.rand_like(logits)
    return logits.exp() / (-u.log()) ** temperature


@torch.no_grad()
def generate(
    policy: LlmPolicy, prompts: Tensor, decoding: Decoding, mask: Tensor | None = None
) -> list[Trajectory]:
    """Semi-autoregressive low-confidence remasking of prompts [B, P]; mask [B, P+G] where they are
    padded.
    """
    size, start = prompts.shape
    ids = torch.cat([prompts, prompts.new_full((size, decoding.gen_length), policy.mask_id)], 1)
    states: list[Tensor] = []
    for block in range(start, ids.shape[1], decoding.block_length):
        end = block + decoding.block_length
        for k in decoding.num_transfer_tokens:
            states.append(ids.clone())
            masked = ids == policy.mask_id
            logits = logits_of(policy, ids, mask)
            logits[..., policy.suppress_tokens] = -torch.inf
            tokens = noisy(logits, decoding.temperature).argmax(-1)
            confidence = logits.softmax(-1).gather(-1, tokens[..., None])[..., 0]
            confidence[:, end:] = -torch.inf
            confidence = confidence.masked_fill(~masked, -torch.inf)
            places = confidence.sort(dim=1, descending=True, stable=True).indices[:, :k]
            ids.scatter_(1, places, tokens.gather(1, places))
    return [Trajectory(row, [state[i] for state in states]) for i, row in enumerate(ids)]


def sequential_attempts(
    policy: LlmPolicy,
    prompt: Tensor,
    decoding: Decoding,
    attempts: int,
    is_correct: Callable[[Tensor], bool],
) -> list[Trajectory]:
    """pass@k of one prompt [P], an answer after the other until one is right."""
    found: list[Trajectory] = []
    for _ in range(attempts):
        found += generate(policy, prompt[None], decoding)
        if is_correct(found[-1].ids[len(prompt) :]):
            break
    return found


def chunk_loss(policy: LlmPolicy, states: States, config: DOpsdConfig) -> Tensor:
    """The loss of one chunk of a trajectory's states, both models' logits of the whole chunk in
    memory.

    The published objective: fixed teacher, its k surest candidates by raw logit, its top_k entries
    renormalised, reverse KL with each entry clipped from above, summed over positions; a mean over
    the chunk's states.
    """
    length, most = states.candidates.shape[1], int(states.k.max())
    completion_mask = torch.arange(most, device=states.k.device) < states.k[:, None]  # [n, K]
    with torch.no_grad(), policy.reference():
        teacher = logits_of(policy, states.teacher_ids)[:, -length:]  # [n, G, V]
        teacher[..., policy.suppress_tokens] = -torch.inf
        sure = teacher.amax(-1).masked_fill(~states.candidates, -torch.inf)  # [n, G]
        places = sure.sort(dim=1, descending=True, stable=True).indices[:, :most, None]  # [n, K, 1]
        told = teacher.take_along_dim(places, 1)  # [n, K, V]
        best = told.topk(config.top_k, -1).indices
    student = logits_of(policy, states.student_ids)[:, -length:].take_along_dim(
        places, 1
    )  # [n, K, V]
    t = told.gather(-1, best).float().log_softmax(-1)
    s = student.gather(-1, best).float().log_softmax(-1)
    terms = (s.exp() * (s - t)).clamp(max=config.clip)  # [n, K, top_k]
    return (terms.sum(-1) * completion_mask).sum() / len(states)
