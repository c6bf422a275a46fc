"""A d-OPSD update, ours against plain: first equal loss and gradients, then the time.

    python benchmarks/update.py

Ours takes micro-batches with the head at needed positions; plain takes a chunk at once with the
whole logits. Loss and LoRA gradients must agree within 1e-5 (8b in bfloat16: within 10%). Measured
at the embedded shape, and with LLaDA's vocabulary on 50 million parameters and one chunk of 14
states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import plain
import torch
from shapes import Shape
from torch import Tensor
from versus import Side, arguments, duel, each_shape, report

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.algorithms.d_opsd.states import BlockSchedule, states_by_update
from dopsd.core.types import Rollout
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.sampler import GenerationRequest, denoise


def states_of(shape: Shape) -> tuple[DOpsd, States]:
    """Return d-OPSD's loss and the states of one trajectory for one update."""
    policy, d = shape.policy, shape.sampling
    blocks = BlockSchedule(
        d.block_length, tuple(d.num_transfer_tokens), policy.mask_id, policy.eos_id
    )
    rollout = trajectory(shape)
    states = states_by_update([rollout], shape.method, blocks, (0, 0))[0]
    first = {name: value[: shape.states] for name, value in states.tensors().items()}
    first["weight"] = torch.full_like(first["weight"], 1 / len(first["weight"]))
    batch = States(**first).to(policy.device)
    return DOpsd(shape.method, None, blocks), batch  # type: ignore[arg-type]


def trajectory(shape: Shape) -> Rollout:
    """Return a rollout of the policy; if that takes minutes, random tokens from left to right."""
    d, policy, prompt = shape.sampling, shape.policy, shape.prompts[0]
    if shape.steps is None:
        return denoise(policy, [GenerationRequest("p", 0, prompt, 0)], d)[0]
    tokens = torch.randint(
        0, policy.eos_id, (d.gen_length,), generator=torch.Generator().manual_seed(3)
    )
    order = torch.arange(d.gen_length) * d.steps // d.gen_length
    return Rollout("p", 0, prompt, tokens, order)


def gradients(policy: LlmPolicy, loss: Callable[[], float]) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of the trainable weights by name."""
    for p in policy.trainable().values():
        p.grad = None
    value = loss()
    return value, {
        name: p.grad.clone() for name, p in policy.trainable().items() if p.grad is not None
    }


def in_parts(shape: Shape, method: DOpsd, states: States) -> float:
    """Add gradients in micro-batches, as ours does, and return the loss."""
    total = 0.0
    for part in states.split(shape.micro_batch):
        loss = method.loss(shape.policy, part).total
        loss.backward()
        total += loss.item()
    return total


def at_once(shape: Shape, states: States) -> float:
    """Add gradients of all states at once, as plain does, and return the loss."""
    loss = plain.chunk_loss(shape.policy, states, shape.method)
    loss.backward()
    return loss.item()


def same(shape: Shape) -> float:
    """Return the largest relative difference of loss and gradients.

    Raises:
        AssertionError: if the difference exceeds the shape's tolerance.
    """
    method, states = states_of(shape)
    (ours, mine), (theirs, other) = (
        gradients(shape.policy, work)
        for work in (lambda: in_parts(shape, method, states), lambda: at_once(shape, states))
    )
    gap, whole = (
        _norm(tensors)
        for tensors in ([mine[name] - other[name] for name in other], list(other.values()))
    )
    worst = max(abs(ours - theirs) / abs(theirs), gap / whole)
    if mine.keys() != other.keys() or not worst < shape.tolerance:
        raise AssertionError(f"loss or gradients differ by {worst:.1e}")
    return worst


def _norm(tensors: list[Tensor]) -> float:
    return torch.cat([t.flatten() for t in tensors]).norm().item()


def timed(shape: Shape, repeats: int) -> dict[str, Any]:
    """Time both sides at a shape."""
    method, states = states_of(shape)
    few = next(states.split(2))
    length = len(shape.prompts[0]) + shape.sampling.gen_length
    flops = len(states) * shape.flops.state(length, is_checkpointed=False)
    theirs = Side(lambda: at_once(shape, states), warm_up=lambda: at_once(shape, few))
    ours = Side(
        lambda: in_parts(shape, method, states), warm_up=lambda: in_parts(shape, method, few)
    )
    figures = duel(shape, theirs, ours, flops, len(states) * length, repeats)
    for p in shape.policy.trainable().values():
        p.grad = None
    return {"states": len(states), "micro_batch": shape.micro_batch} | asdict(figures)


def main() -> None:
    a = arguments(__doc__)
    results: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, 1):
        check = {"relative_difference": same(replace(shape, states=2 if shape.states else None))}
        results[shape.name] = {"checked": check, "timed": timed(shape, a.repeats)}
    report(results, a.out)


if __name__ == "__main__":
    main()
