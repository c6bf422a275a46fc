"""The published procedure, literally, as the baseline of the benchmarks ("plain").

Batch 1, attempts one after the other, logits of the whole sequence, whole chunks in memory;
evaluation with the published batch of 8. `rollout.py`, `update.py`, `trajectory.py` and
`evaluate.py` measure against it with the same model, LoRA layers, attention kernel and threads.

Nothing is slowed down on purpose: these are the published loops of LLaDA and d-OPSD, without a
progress bar and in the model's own dtype. Two things differ from the published code, so that both
sides give the same result: tokens that must not be sampled are suppressed, and the lower position
wins between equal confidences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.config import Decoding


@dataclass(frozen=True)
class Trajectory:
    """A completion, and a copy of the whole sequence before each step."""

    ids: Tensor  # [P+G]
    states: list[Tensor]  # S x [P+G]


def logits_of(policy: LlmPolicy, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the logits at every position: [B, T] -> [B, T, V]."""
    return policy.head(policy.hidden(ids, mask))


def noisy(logits: Tensor, temperature: float) -> Tensor:
    """Add Gumbel noise as the published samplers do: the sample is argmax exp(l) / (-ln u)^t."""
    if temperature == 0:
        return logits
    u = torch.rand_like(logits)
    return logits.exp() / (-u.log()) ** temperature


@torch.no_grad()
def generate(
    policy: LlmPolicy, prompts: Tensor, decoding: Decoding, mask: Tensor | None = None
) -> list[Trajectory]:
    """Sample completions by semi-autoregressive low-confidence remasking.

    Args:
        policy: the model.
        prompts: [B, P].
        decoding: lengths, steps and temperature.
        mask: [B, P+G], False at padding; None if no prompt is padded.
    """
    size, start = prompts.shape
    prompts, mask = prompts.to(policy.device), None if mask is None else mask.to(policy.device)
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
    """Sample one prompt [P] until a completion is correct, at most `attempts` times."""
    trajectories: list[Trajectory] = []
    for _ in range(attempts):
        trajectories += generate(policy, prompt[None], decoding)
        if is_correct(trajectories[-1].ids[len(prompt) :]):
            break
    return trajectories


def chunk_loss(policy: LlmPolicy, states: States, config: DOpsdConfig) -> Tensor:
    """Return the published loss of one chunk of states, with all logits of the chunk in memory.

    The teacher is the base. At its k most confident candidates by raw logit, the loss is the
    reverse KL over the teacher's renormalised top_k entries, each clipped from above. The loss is
    summed over positions and averaged over the chunk's states.
    """
    length, most = states.candidates.shape[1], int(states.k.max())
    completion_mask = torch.arange(most, device=states.k.device) < states.k[:, None]  # [n, K]
    with torch.no_grad(), policy.reference():
        teacher = logits_of(policy, states.teacher_ids)[:, -length:]  # [n, G, V]
        teacher[..., policy.suppress_tokens] = -torch.inf
        sure = teacher.amax(-1).masked_fill(~states.candidates, -torch.inf)  # [n, G]
        places = sure.sort(dim=1, descending=True, stable=True).indices[:, :most, None]  # [n, K, 1]
        teacher_logits = teacher.take_along_dim(places, 1)  # [n, K, V]
        best = teacher_logits.topk(config.top_k, -1).indices
    student = logits_of(policy, states.student_ids)[:, -length:].take_along_dim(
        places, 1
    )  # [n, K, V]
    t = teacher_logits.gather(-1, best).float().log_softmax(-1)
    s = student.gather(-1, best).float().log_softmax(-1)
    terms = (s.exp() * (s - t)).clamp(max=config.clip)  # [n, K, top_k]
    return (terms.sum(-1) * completion_mask).sum() / len(states)
