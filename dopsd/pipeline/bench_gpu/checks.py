"""Whether a GPU computes what the CPU does: tokens, losses, gradients, the optimizer, batches.

All but the fused kernels are checked with the embedded base, in float32. The same code with
rounding that differs in the last digit passes; a wrong mask, index or kernel does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dopsd.config import profiles
from dopsd.config.params import Params
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.pipeline import new_project
from dopsd.pipeline.bench_gpu.subject import algorithm, moved, states_of
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.training.optim import STATE, adamw, restore_moments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from dopsd.core.types import Rollout

BASE = new_project.TEMPLATE / "base/sudoku"
ROWS, STATES, SHORTEST = 8, 16, 10
CPU = torch.device("cpu")
SAME, LOSS, GRADIENT = 0.0, 1e-5, 1e-4  # bounds of differences in float32


@dataclass(frozen=True)
class Found:
    """A difference, the bound that it must not exceed, and what both are shares of."""

    difference: float
    bound: float
    of: str

    @property
    def is_within(self) -> bool:
        """Whether the check passed; a difference that is no number does not."""
        return self.difference <= self.bound


def embedded(device: torch.device, base: Path = BASE) -> tuple[Params, LlmPolicy]:
    """Return the settings and the base that ship with dopsd, with an adapter that is not zero."""
    params = Params.model_validate(profiles.resolve(profiles.EMBEDDED))
    model = params.model_of("sudoku").model_copy(update={"path": str(base)})
    return params, moved(load_policy(model, params.train.lora, 0, device))


def rollouts(params: Params, policy: LlmPolicy, temperature: float, at_once: int) -> list[Rollout]:
    """Return rollouts of ROWS prompts of different lengths, so many in a batch."""
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(6, 90, (SHORTEST + i,), generator=generator) for i in range(ROWS)]
    requests = [GenerationRequest(f"p{i}", 0, prompt, i) for i, prompt in enumerate(prompts)]
    how = decoding(params.sampling, temperature)
    parts = [requests[i : i + at_once] for i in range(0, ROWS, at_once)]
    return [rollout for part in parts for rollout in denoise(policy, part, how)]


def differing(ours: list[Rollout], theirs: list[Rollout]) -> float:
    """Return the share of tokens that differ, or were committed at another step."""
    differs = [
        (a.completion_ids != b.completion_ids) | (a.revealed_at != b.revealed_at)
        for a, b in zip(ours, theirs, strict=True)
    ]
    return torch.cat(differs).float().mean().item()


def _sampled(device: torch.device, temperature: float) -> Found:
    here, there = (
        rollouts(*embedded(place), temperature, ROWS)  # each place has its own weights
        for place in (CPU, device)
    )
    return Found(differing(there, here), SAME, "tokens")


def greedy(device: torch.device) -> Found:
    """Compare greedy rollouts with the CPU's, token for token."""
    return _sampled(device, 0.0)


def noisy(device: torch.device) -> Found:
    """Compare rollouts with noise, whose keys are the same on all devices."""
    return _sampled(device, 0.9)


def batches(device: torch.device) -> Found:
    """Compare rollouts of a padded batch with those of each prompt alone, on the GPU."""
    params, policy = embedded(device)
    many, alone = (rollouts(params, policy, 0.9, size) for size in (ROWS, 1))
    return Found(differing(many, alone), SAME, "tokens")


def _loss_and_gradient(device: torch.device, rollout: Rollout) -> tuple[float, Tensor]:
    params, policy = embedded(device)
    method = algorithm(params, policy)
    planned = states_of(params, method, rollout)
    batch = planned.rows(list(range(min(STATES, len(planned))))).to(device)
    loss = method.loss(policy, batch).total
    loss.backward()
    parts = [p.grad.flatten().cpu() for p in policy.trainable().values() if p.grad is not None]
    return loss.item(), torch.cat(parts)


def _both(device: torch.device) -> tuple[tuple[float, Tensor], tuple[float, Tensor]]:
    params, policy = embedded(CPU)
    rollout = rollouts(params, policy, 0.9, ROWS)[0]
    return _loss_and_gradient(CPU, rollout), _loss_and_gradient(device, rollout)


def loss(device: torch.device) -> Found:
    """Compare the loss of d-OPSD on the states of one trajectory with the CPU's."""
    (here, _), (there, _) = _both(device)
    return Found(abs(there - here) / abs(here), LOSS, "the loss")


def gradient(device: torch.device) -> Found:
    """Compare the gradient of that loss with the CPU's."""
    (_, here), (_, there) = _both(device)
    return Found(((there - here).norm() / here.norm()).item(), GRADIENT, "the gradient's norm")


def resume(device: torch.device) -> Found:
    """Continue AdamW from a checkpoint; the weights must be those of one that went on."""
    params, policy = embedded(device)
    weights = list(policy.trainable().values())
    optimizer, names = adamw(weights, params.train), [str(i) for i in range(len(weights))]
    _steps(optimizer, weights, (0, 1))
    kept = [p.detach().clone() for p in weights]
    saved = {
        f"{kind}/{name}": optimizer.state[p][kind].detach().cpu().clone()
        for name, p in zip(names, weights, strict=True)
        for kind in STATE
    }
    _steps(optimizer, weights, (2, 3))
    went_on = [p.detach().clone() for p in weights]
    for p, value in zip(weights, kept, strict=True):
        p.data.copy_(value)
    resumed = adamw(weights, params.train)
    restore_moments(resumed, names, saved)
    _steps(resumed, weights, (2, 3))
    pairs = zip(weights, went_on, strict=True)
    return Found(max((p - q).abs().max().item() for p, q in pairs), SAME, "a weight")


def _steps(optimizer: torch.optim.Optimizer, weights: list[Tensor], seeds: tuple[int, ...]) -> None:
    """Make a step for each seed, which decides the gradients."""
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for p in weights:
            p.grad = torch.randn(p.shape, generator=generator).to(p)
        optimizer.step()


CHECKS: dict[str, Callable[[torch.device], Found]] = {
    "greedy rollouts: the CPU's tokens": greedy,
    "rollouts with noise: the CPU's tokens": noisy,
    "rollouts alone: those of a batch": batches,
    "loss of d-OPSD: the CPU's": loss,
    "gradient of d-OPSD: the CPU's": gradient,
    "AdamW resumed: as if it had gone on": resume,
}
