"""Parts at LLaDA-8B's shape with random weights: rollouts, updates, and comparisons."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import plain
import torch
from kit import ANSWER, BLOCK, LENGTH, Kit, Results
from random_weights import PROMPT, algorithm, settings, states_of
from torch import Tensor
from versus import first_steps

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.core.types import Rollout
from dopsd.models.graphs import BEFORE, CudaRecorder, GraphedTrunk
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.loading import compile_blocks
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import sampler_of
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.training.grad_accumulation import MicroBatches
from dopsd.training.optim import adamw, optimizer_step

STEPS = 16  # of a block: two tokens a step
FIRST_STATE = 10  # earlier states of a trajectory have nearly all masks
FEW = 4  # layers where two models stand beside each other
Work = Callable[[], object]


class OneProcess:
    """Stands in for accelerate's description of the ranks."""

    num_processes = 1


def requests(rows: int, length: int) -> list[GenerationRequest]:
    """Return so many prompts of so many tokens, in main memory as prompts are."""
    ids = torch.arange(1, length + 1)
    return [GenerationRequest(str(i), 0, ids, i) for i in range(rows)]


def last_block(steps: int = STEPS, temperature: float = 0.9) -> Decoding:
    """Return how one block is denoised; the sequence before it counts as the prompt."""
    return Decoding(BLOCK, BLOCK, steps, temperature)


def planned(kit: Kit, policy: LlmPolicy, states: int, *changes: str) -> tuple[Any, DOpsd, States]:
    """Return settings, d-OPSD's loss, and so many states of one trajectory on the device."""
    params = settings(*changes)
    method = algorithm(params, policy)
    ids = torch.arange(1, ANSWER + 1)
    rollout = Rollout("p", 0, torch.arange(1, PROMPT + 1), ids, torch.arange(ANSWER) // 2)
    chosen = list(range(FIRST_STATE, FIRST_STATE + states))
    return params, method, states_of(params, method, rollout).rows(chosen).to(kit.device)


def update(kit: Kit, policy: LlmPolicy, states: int) -> Work:
    """Return the work of one update: gradients of some states in one pass, and AdamW's step."""
    params, method, batch = planned(kit, policy, states)
    optimizer = adamw(policy.trainable().values(), params.train)
    micro_batches = MicroBatches(states, kit.device)

    def work() -> None:
        micro_batches.gradients(method, policy, [batch], 1.0)
        optimizer_step(optimizer, OneProcess(), params.train, 1)  # type: ignore[arg-type]
        if micro_batches.size < states:
            raise torch.OutOfMemoryError(f"only {micro_batches.size} states fit at once")

    return work


def forget(policy: LlmPolicy) -> None:
    """Drop gradients, and compute without dropout again."""
    policy.core.eval()
    for p in policy.trainable().values():
        p.grad = None


def rollouts(kit: Kit) -> Results:
    """Sample whole blocks, the last of 456 tokens."""
    began = time.perf_counter()
    policy = kit.llada()
    kit.timer.wait()
    yield "random weights", {"seconds": time.perf_counter() - began, "peak_gb": kit.timer.peak_gb()}
    how, before = last_block(), LENGTH - BLOCK
    step = kit.shape().denoising_step(LENGTH, BLOCK * (1 + 1 / STEPS) / 2)
    denoise(policy, requests(2, before), how)  # kernels are compiled
    for rows in (2,) if kit.is_toy else (16, 32, 64):
        asked = requests(rows, before)
        kit.timer.peak_gb()
        ms = 1e3 * kit.timer.seconds(lambda asked=asked: denoise(policy, asked, how)) / STEPS
        peak = kit.timer.peak_gb()
        found = {"ms": ms, "tokens_per_second": rows * BLOCK / STEPS / ms * 1e3}
        found |= kit.rate(rows * step, ms)
        if peak is not None:
            found |= {"peak_gb": peak, "estimated_gb": kit.rollout_gb(rows)}
        yield f"denoising step, {rows} rows", found


def scoring(kit: Kit) -> Results:
    """Time a forward of exact scores and of threshold decoding, one token a step as at worst."""
    policy, rows, exact = kit.llada(), 2 if kit.is_toy else 16, last_block(temperature=0.0)
    asked, found = requests(rows, LENGTH - BLOCK), {}
    for steps, how in ((STEPS, exact), (BLOCK, replace(exact, threshold=1.0))):
        name = "exact_ms" if how is exact else "threshold_ms"
        found[name] = kit.timer.ms(partial(sampler_of(how), policy, asked, how)) / steps
    yield f"a forward of scoring, {rows} rows", found


def record(kit: Kit, policy: LlmPolicy, work: Callable[[], None]) -> None:
    """Do work until its passes are replayed."""
    policy.graphs = GraphedTrunk(policy.core, CudaRecorder(kit.device))
    for _ in range(BEFORE + 1):
        work()


def recorded_update(kit: Kit) -> Results:
    """Time an update of few states without dropout, launched one by one and replayed."""
    policy, states = kit.llada(dropout=0.0), 2 if kit.is_toy else 8
    work = update(kit, policy, states)
    found = {"launched_ms": kit.timer.ms(work)}
    if kit.timer.is_gpu:
        record(kit, policy, work)
        found |= {"replayed_ms": kit.timer.ms(work), "peak_gb": kit.timer.peak_gb()}
    policy.graphs = None
    forget(policy)
    yield f"update of {states} states without dropout", found


def updates(kit: Kit) -> Results:
    """Measure updates with dropout: time, useful share of the card, memory against the estimate."""
    policy, shape = kit.llada(), kit.shape()
    cases = ((2, False), (2, True)) if kit.is_toy else ((8, False), (14, False), (14, True))
    for states, is_checkpointed in cases:  # the one with checkpointing last: it stays on
        if is_checkpointed:
            policy.use_gradient_checkpointing()
        name = f"update, {states} states" + ", checkpointing" * is_checkpointed
        policy.core.train()
        try:
            kit.timer.peak_gb()
            ms = kit.timer.ms(update(kit, policy, states))
        except torch.OutOfMemoryError as error:
            yield name, {"out_of_memory": str(error).splitlines()[0][:120]}
            continue
        finally:
            forget(policy)
        peak = kit.timer.peak_gb()
        found = {"ms": ms, "states_per_second": states / ms * 1e3}
        found |= kit.rate(states * shape.state(LENGTH, is_checkpointed=False), ms)
        if peak is not None:
            found |= {"peak_gb": peak, "estimated_gb": kit.update_gb(states, is_checkpointed)}
        yield name, found
    kit.free()  # of checkpointing


def profiles(kit: Kit) -> Results:
    """Say which kernels a block and an update take, and where the host waits."""
    policy, before = kit.llada(), LENGTH - BLOCK
    few, many = requests(2 if kit.is_toy else 4, before), requests(2 if kit.is_toy else 16, before)
    yield "waits of a block", {"lines": kit.timer.waits(lambda: denoise(policy, few, last_block()))}
    work = lambda: denoise(policy, many, last_block(2))  # noqa: E731
    yield f"kernels of two steps, {len(many)} rows", kit.timer.kernels(work)
    states = 2 if kit.is_toy else 8
    policy.core.train()
    try:
        work = update(kit, policy, states)
        work()
        yield "waits of an update", {"lines": kit.timer.waits(work)}
        yield f"kernels of an update, {states} states", kit.timer.kernels(work)
    finally:
        forget(policy)


def published(kit: Kit) -> Results:
    """Time the published procedure (batch 1, logits of all positions) against ours.

    Both have the same model and kernels; `ratio` is how much faster ours is for a row or state.
    """
    policy = kit.llada(dropout=0.0)
    rows, steps = (2, 4) if kit.is_toy else (32, STEPS)
    how = Decoding(ANSWER, BLOCK, 128, 0.9)
    prompt = torch.arange(1, PROMPT + 1, device=kit.device)
    alone = kit.timer.ms(
        lambda: first_steps(policy, steps, lambda p: plain.generate(p, prompt[None], how)), 2
    )
    asked = requests(rows, PROMPT)
    ours = kit.timer.ms(lambda: first_steps(policy, steps, lambda p: denoise(p, asked, how)), 2)
    figures = {"published_ms_a_row": alone, "ours_ms_a_row": ours / rows}
    name = f"first {steps} of 128 steps: published one row at a time, ours {rows} rows"
    yield name, figures | {"ratio": alone * rows / ours}
    states = 2 if kit.is_toy else 8
    params, method, batch = planned(kit, policy, states)
    config = params.method.d_opsd

    def theirs() -> None:
        plain.chunk_loss(policy, batch, config).backward()
        forget(policy)

    def mine() -> None:
        method.loss(policy, batch).total.backward()
        forget(policy)

    found = {}
    sides = {"published": theirs, "ours": mine} | ({"replayed": mine} if kit.timer.is_gpu else {})
    for side, work in sides.items():
        if side == "replayed":
            record(kit, policy, work)
        kit.timer.peak_gb()
        found[f"{side}_ms"] = kit.timer.ms(work, 2)
        found[f"{side}_peak_gb"] = kit.timer.peak_gb()
    policy.graphs = None
    name = f"loss and gradients of {states} states: published whole logits, ours needed positions"
    yield name, found | {"ratio": found["published_ms"] / found["ours_ms"]}


def fused_model(kit: Kit) -> Results:
    """Time a model of four layers with fused kernels against the same in plain torch."""
    if kit.kernels != "liger":
        yield "fused kernels in the model", {"left_out": "liger-kernel does not run here"}
        return
    kit.free()
    found: dict[str, dict[str, float]] = {"step of 16 rows": {}, "update of 8 states": {}}
    for kernels in ("liger", "torch"):
        policy = kit.llada(FEW, kernels)
        asked, how = requests(16, LENGTH - BLOCK), last_block(4)
        ms = kit.timer.ms(lambda p=policy, a=asked, h=how: denoise(p, a, h)) / 4
        found["step of 16 rows"][f"{kernels}_ms"] = ms
        policy.core.train()
        found["update of 8 states"][f"{kernels}_ms"] = kit.timer.ms(update(kit, policy, 8))
        forget(policy)
        kit.free()
    for name, figures in found.items():
        ratio = figures["torch_ms"] / figures["liger_ms"]
        yield f"{FEW} layers, {name}: plain / fused", figures | {"ratio": ratio}


def repeatable(kit: Kit) -> Results:
    """Say whether equal work gives equal bits: only then can a resumed run be the same."""
    policy = kit.llada(FEW, dropout=0.0)
    _, method, batch = planned(kit, policy, 2 if kit.is_toy else 8)

    def gradient() -> tuple[float, Tensor]:
        forget(policy)
        loss = method.loss(policy, batch).total
        loss.backward()
        parts = [p.grad.flatten() for p in policy.trainable().values() if p.grad is not None]
        return loss.item(), torch.cat(parts)

    (loss, first), (again, second) = gradient(), gradient()
    found: dict[str, Any] = {"same_loss": loss == again, "same_gradient": first.equal(second)}
    found["gradient_differs_by"] = ((first - second).norm() / first.norm()).item()
    yield f"two equal passes, {FEW} layers", found
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        (_, first), (_, second) = gradient(), gradient()
        yield "the same, deterministic", {"same_gradient": first.equal(second)}
    except RuntimeError as error:
        yield "the same, deterministic", {"refused": str(error).splitlines()[0][:200]}
    finally:
        torch.use_deterministic_algorithms(False)
        forget(policy)
    asked = [GenerationRequest(str(i), 0, torch.arange(1, 60 + i), i) for i in range(4)]
    how = last_block()
    together, again_ = denoise(policy, asked, how), denoise(policy, asked, how)
    alone = [denoise(policy, [one], how)[0] for one in asked]
    figures = {
        "differ_when_repeated": _differing(together, again_),
        "differ_when_alone": _differing(together, alone),
    }
    yield f"share of tokens, {FEW} layers of random bfloat16 weights", figures


def _differing(some: list[Rollout], others: list[Rollout]) -> float:
    pairs = zip(some, others, strict=True)
    return torch.cat([a.completion_ids != b.completion_ids for a, b in pairs]).float().mean().item()


def compiled(kit: Kit) -> Results:
    """Time blocks with torch.compile against those without, in a model of four layers."""
    kit.free()
    policy = kit.llada(FEW, dropout=0.0)
    yield from compiling(kit, policy, f"{FEW} layers", requests(16, LENGTH - BLOCK), 4)


def compiling(
    kit: Kit,
    policy: LlmPolicy,
    label: str,
    asked: list[GenerationRequest],
    steps: int,
    how: Callable[[Any], None] = compile_blocks,
) -> Results:
    """Time a step before and after torch.compile, and free the model."""
    if kit.is_toy:
        yield f"{label}, torch.compile", {"left_out": "a minute of compiling for a CPU"}
        return
    work = partial(denoise, policy, asked, last_block(steps))
    before = kit.timer.ms(work) / steps
    how(policy.core)
    first = kit.timer.seconds(work)
    after = kit.timer.ms(work) / steps
    found = {"ms": before, "compiled_ms": after, "ratio": before / after, "first_seconds": first}
    yield f"{label}, step of {len(asked)} rows, with torch.compile", found
    kit.free()
