"""A card whose memory runs out: batches are halved, with the results of smaller ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from card import CPU, LOGITS, Within, collect, distance, gradient_of, note, trainer
from torch import Tensor, nn

from dopsd.models import memory
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.sampler import GenerationRequest
from dopsd.training.grad_accumulation import MicroBatches
from dopsd.training.trainer import Trainer

pytestmark = pytest.mark.cuda
APART = 2**28  # bytes between both needs, so that the allocator's blocks do not matter


@contextmanager
def room_for_half(policy: LlmPolicy, rows: int, work: Callable[[int], object]) -> Iterator[None]:
    """Leave room for work(rows / 2), and not for work(rows)."""
    if policy.device == CPU:

        def refuse(layer: nn.Module, given: tuple, states: Tensor) -> None:
            if len(states) > rows // 2:
                raise torch.OutOfMemoryError("no room")

        hook = policy.core.blocks()[1].register_forward_hook(refuse)
        yield
        hook.remove()
        return
    for _ in range(2):  # the first passes also load kernels and allocate what is needed once
        half, whole = (memory.peak(policy.device, lambda n=n: work(n)) for n in (rows // 2, rows))
    assert whole - half > APART
    gc.collect()
    torch.cuda.empty_cache()
    left = (half + whole) // 2 - torch.cuda.memory_allocated()
    free = torch.cuda.mem_get_info()[0]
    note(half_gb=half / 1e9, whole_gb=whole / 1e9, left_gb=left / 1e9, free_gb=free / 1e9)
    ballast = torch.empty(free - left, dtype=torch.uint8, device=policy.device)
    try:
        yield
    finally:
        del ballast
        torch.cuda.empty_cache()


@pytest.fixture
def loop(project, device) -> Trainer:
    """A run of the toy project that has collected."""
    made = trainer("d_opsd", device)
    collect(made)
    return made


def gradient(loop: Trainer, micro_batches: MicroBatches, rows: int) -> Tensor:
    """The gradient of one state, whose pass always fits, and of so many together."""
    (batch, *_) = loop.waiting[0]
    batches = [batch.rows([0]), batch.rows([i % len(batch) for i in range(rows)])]
    micro_batches.gradients(loop.algorithm, loop.policy, batches, float(rows))
    return gradient_of(loop)


def test_a_micro_batch_that_does_not_fit_is_halved(loop: Trainer, device, within: Within):
    rows = 8 if device == CPU else 4096
    expected = gradient(loop, MicroBatches(rows // 2, device), rows)
    micro_batches = MicroBatches(rows, device)
    with room_for_half(loop.policy, rows, lambda n: gradient(loop, MicroBatches(n, device), n)):
        found = gradient(loop, micro_batches, rows)
    assert micro_batches.size in (rows // 2, rows // 4)
    within(LOGITS, gradient=distance(found, expected))  # the failed pass has left nothing


def test_a_batch_of_rollouts_that_does_not_fit_is_halved_once(loop, device, within):
    rows, prompt = 8 if device == CPU else 2**13, torch.arange(2, 98)
    requests = [GenerationRequest(str(i), 0, prompt, i) for i in range(rows)]

    def sampled(size: int, count: int) -> Tensor:
        loop.policy.rows_that_fit.clear()
        found = denoise_all(loop.policy, requests[:count], Decoding(16, 8, 4, 0.9, batch_size=size))
        return torch.stack([rollout.completion_ids for rollout in found])

    expected = sampled(rows // 2, rows)
    with room_for_half(loop.policy, rows, lambda n: sampled(n, n)):
        found = sampled(rows, rows)
    assert loop.policy.rows_that_fit == {16: rows // 2}
    within(0.001, rows=(found != expected).any(1).double().mean().item())  # near ties
