"""What is timed: a matrix product, a copy, denoising steps and updates at LLaDA-8B's shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from dopsd.core.types import Rollout
from dopsd.models.llada.configuration import LladaConfig
from dopsd.pipeline.bench_gpu.subject import PROMPT, Subject, algorithm, settings, states_of
from dopsd.pipeline.estimate import GIGA
from dopsd.pipeline.memory_model import block_bytes, memory, rollout_bytes, update_bytes
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import Decoding, GenerationRequest, denoise
from dopsd.training.grad_accumulation import MicroBatches
from dopsd.training.optim import adamw, optimizer_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.pipeline.bench_gpu.stopwatch import Figures, Stopwatch

SIZE = 8192  # rows and columns of the matrices
COPIED = 2**30  # bytes
STEPS = 4  # denoising steps of a run
LENGTH = PROMPT + 256  # tokens
FIRST_STATE = 10  # earlier states of a trajectory have nearly all masks


@dataclass(frozen=True)
class Case:
    """A measured piece of work.

    Attributes:
        name: its name in tables.
        run: measures a subject.
        needs: changes of settings that say what memory it needs.
        is_update: whether it trains.
        is_large: whether `--quick` leaves it out.
    """

    name: str
    run: Callable[[Subject], Figures]
    needs: tuple[str, ...]
    is_update: bool = False
    is_large: bool = False

    def gigabytes(self, layers: int, kernels: str) -> float:
        """Return the memory that it needs, by the model of `dopsd estimate`."""
        params = settings(*self.needs, f"model.kernels={kernels}")
        config = LladaConfig(n_layers=layers)
        shape = Shape(config, lora_parameters(config, params))
        parts, block = memory(params, shape, LENGTH), block_bytes(kernels)
        work = (
            update_bytes(params, shape, block, LENGTH)
            if self.is_update
            else rollout_bytes(params.sampling, shape, block, LENGTH)
        )
        return (parts["weights"] + parts["adapter and optimizer"] + work) / GIGA


class Enough(Exception):
    """The measured steps are over."""


def ids(count: int) -> torch.Tensor:
    """Return different tokens in main memory, where prompts and rollouts are."""
    return torch.arange(1, count + 1)


def matrix_product(stopwatch: Stopwatch) -> Figures:
    """Measure the product of two square matrices in bfloat16."""
    a = torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device="cuda")

    def work() -> Figures:
        stopwatch.start()
        for _ in range(10):
            a @ a
        return stopwatch.stop(10)

    return stopwatch.median(work)


def copy(stopwatch: Stopwatch) -> Figures:
    """Measure a copy in the GPU's memory."""
    source = torch.zeros(COPIED // 4, device="cuda")

    def work() -> Figures:
        stopwatch.start()
        for _ in range(10):
            source.clone()
        return stopwatch.stop(10)

    return stopwatch.median(work)


def denoising_step(subject: Subject, rows: int, how: Decoding) -> Figures:
    """Measure the first STEPS denoising steps of a batch; figures are of one step."""
    policy, stopwatch = subject.policy, subject.stopwatch
    requests = [GenerationRequest(f"p{i}", 0, ids(PROMPT), i) for i in range(rows)]
    hidden, calls, found = policy.hidden, [0], []

    def counted(ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        if calls[0] == STEPS:
            found.append(stopwatch.stop(STEPS))
            raise Enough
        if calls[0] == 0:
            stopwatch.start()
        calls[0] += 1
        return hidden(ids, attention_mask)

    policy.hidden = counted  # type: ignore[method-assign, assignment]
    try:
        denoise(policy, requests, how)
    except Enough:
        pass
    finally:
        policy.hidden = hidden  # type: ignore[method-assign]
    return found[0]


def rollout(rows: int, subject: Subject) -> Figures:
    """Measure a step of rollouts, sampled with noise."""
    how = decoding(subject.params.sampling, 0.9)
    return subject.stopwatch.median(lambda: denoising_step(subject, rows, how))


def evaluation(rows: int, subject: Subject) -> Figures:
    """Measure a step of an evaluation: greedy, with the settings of its first protocol."""
    how = decoding(next(iter(subject.params.evaluate.protocols.values())))
    return subject.stopwatch.median(lambda: denoising_step(subject, rows, how))


class OneProcess:
    """Stands in for accelerate's description of the ranks."""

    num_processes = 1


def trajectory() -> Rollout:
    """Return a rollout without numbers of its own: two tokens a step, none ends early."""
    return Rollout("p", 0, ids(PROMPT), ids(256), torch.arange(256) // 2)


def update(states: int, is_checkpointed: bool, subject: Subject) -> Figures:
    """Measure the gradients of some states in one micro-batch, and the optimizer's step."""
    policy, params, stopwatch = subject.policy, subject.params, subject.stopwatch
    method = algorithm(params, policy)
    planned = states_of(params, method, trajectory())
    chosen = list(range(FIRST_STATE, FIRST_STATE + states))
    batch = planned.rows(chosen).to(policy.device)
    optimizer = adamw(policy.trainable().values(), params.train)
    micro_batches = MicroBatches(states, policy.device)
    if is_checkpointed:
        policy.use_gradient_checkpointing()

    def work() -> Figures:
        stopwatch.start()
        micro_batches.gradients(method, policy, [batch], 1.0)
        optimizer_step(optimizer, OneProcess(), params.train, 1)
        return stopwatch.stop()

    policy.core.train(params.train.lora.dropout > 0)
    try:
        found = stopwatch.median(work)
    finally:
        policy.core.eval()
        for p in policy.trainable().values():
            p.grad = None
    if micro_batches.size < states:
        raise RuntimeError(f"out of memory: only {micro_batches.size} states fit at once")
    return found


def _rollout(rows: int) -> Case:
    needs = (f"sampling.batch_size={rows}",)
    name = f"denoising step, {rows} rows"
    return Case(name, partial(rollout, rows), needs, is_large=rows > 16)  # noqa: PLR2004


def _update(states: int, is_checkpointed: bool) -> Case:
    needs = (
        f"train.micro_batch_states={states}",
        f"train.gradient_checkpointing={str(is_checkpointed).lower()}",
    )
    name = f"update, {states} states" + (", checkpointing" if is_checkpointed else "")
    run = partial(update, states, is_checkpointed)
    return Case(name, run, needs, is_update=True, is_large=states > 8)  # noqa: PLR2004


EVALUATED = 16  # rows
CASES = (  # those with gradient checkpointing come last: it stays on
    *(_rollout(rows) for rows in (16, 32, 64)),
    Case(
        f"greedy step of an evaluation, {EVALUATED} rows",
        partial(evaluation, EVALUATED),
        (f"sampling.batch_size={EVALUATED}",),
    ),
    *(_update(states, False) for states in (8, 14)),
    *(_update(states, True) for states in (8, 14)),
)
RATES: dict[str, Callable[[Stopwatch], Figures]] = {
    f"matrix product of {SIZE}, bfloat16": matrix_product,
    "copy of 1 GiB": copy,
}
