"""Rollouts at the shapes of small bases, which many rows fill and few do not."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from kit import BLOCK, Kit, Results
from llada_8b import STEPS, compiling, last_block, recorded_update, requests
from random_weights import PROMPT, moved, random_policy, settings

from dopsd.core.types import Problem, Rollout
from dopsd.models.denoiser import DenoiserConfig
from dopsd.models.graphs import CudaRecorder, GraphedTrunk
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.loading import compile_blocks
from dopsd.models.registry import published
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import SamplingPlan, generate_until_correct
from dopsd.rollout.sampler import denoise

TINY_A2D, SMOLLM2 = "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", "SmolLM2-135M-diffusion"
ROWS = (16, 64, 128, 256)


def base(name: str, kit: Kit, kernels: str = "torch") -> tuple[DenoiserConfig, LlmPolicy]:
    """Return a base of this shape with random weights and an adapter."""
    kit.free()
    config = next(base for base in published() if base.name == name).config()
    assert config is not None
    if config.eos_token_id is None:  # any token will do for random weights
        config.eos_token_id = 0
    if kit.is_toy:
        config = config.toy()
    config._attn_implementation = "sdpa"
    lora = settings().train.lora.model_copy(update={"dropout": 0.0})
    return config, moved(random_policy(config, lora, kit.device, torch.bfloat16, kernels))


def attempts_ahead(kit: Kit) -> Results:
    """Sample 32 problems until each is right, at most 8 times, with passes as they come and filled.

    Two of five are right at first, as with SmolLM2 on Countdown, then about a sixth each time.
    """
    _, policy = base(SMOLLM2, kit)
    count, length, steps = (4, 8, 4) if kit.is_toy else (32, 64, 32)
    problems = [(Problem(str(i), "", ""), torch.arange(1, PROMPT + 1)) for i in range(count)]
    found: dict[str, float] = {}
    for rows in (1, 128):
        how = Decoding(length, length // 2, steps, batch_size=256, min_rows=rows)
        plan = SamplingPlan(8, 0.9, 0.9, stop_at_first_correct=True, decoding=how)
        work = partial(generate_until_correct, policy, problems, plan, _is_right)
        denoise(policy, requests(2, PROMPT), how)
        found[f"at_least_{rows}_rows_seconds"] = kit.timer.seconds(work)
    slow, fast = found.values()
    yield (
        f"{count} problems until right: passes as they come / filled",
        found | {"ratio": slow / fast},
    )


def _is_right(problem: Problem, rollout: Rollout) -> bool:
    return (int(problem.id) * 7 + rollout.attempt * 5) % 20 < (8 if rollout.attempt == 0 else 3)


def small_bases(kit: Kit) -> Results:
    """Sample the first block at several batch sizes, which tell what a profile should set."""
    for name in (TINY_A2D, SMOLLM2):
        yield from rollouts(name, kit)


def rollouts(name: str, kit: Kit) -> Results:
    """Sample the first block of a base, named as `dopsd models` lists it."""
    config, policy = base(name, kit)
    shape = Shape(config, lora_parameters(config, settings()))
    length, how, label = PROMPT + BLOCK, last_block(), name.rpartition("/")[2]
    step = shape.denoising_step(length, BLOCK * (1 + 1 / STEPS) / 2)
    denoise(policy, requests(2, PROMPT), how)
    for rows in (2,) if kit.is_toy else ROWS:
        asked = requests(rows, PROMPT)
        kit.timer.peak_gb()
        ms = 1e3 * kit.timer.seconds(lambda asked=asked: denoise(policy, asked, how)) / STEPS
        found = {"ms": ms, "tokens_per_second": rows * BLOCK / STEPS / ms * 1e3}
        found |= kit.rate(rows * step, ms) | {"peak_gb": kit.timer.peak_gb()}
        yield f"{label}: denoising step, {rows} rows of {length} tokens", found
    asked = requests(2 if kit.is_toy else 64, PROMPT)
    work = lambda: denoise(policy, asked, last_block(2))  # noqa: E731
    yield f"{label}: kernels of two steps, {len(asked)} rows", kit.timer.kernels(work)


def graphs(kit: Kit) -> Results:
    """Time a step with forwards launched one by one and replayed, in plain and fused kernels."""
    yield from recorded_update(kit)
    for name, counts in ((SMOLLM2, (16, 64)), (TINY_A2D, (64, 128))):
        label = name.rpartition("/")[2]
        for kernels in ("torch", kit.kernels) if kit.kernels != "torch" else ("torch",):
            config, policy = base(name, kit, kernels)
            shape = Shape(config, lora_parameters(config, settings()))
            step = shape.denoising_step(PROMPT + BLOCK, BLOCK * (1 + 1 / STEPS) / 2)
            for rows in (2,) if kit.is_toy else counts:
                found, asked = {}, requests(rows, PROMPT)
                for way in ("launched", "replayed"):
                    if way == "replayed" and not kit.timer.is_gpu:
                        found["left_out"] = "CUDA graphs need a GPU"
                        break
                    recorder = CudaRecorder(kit.device) if found else None
                    policy.graphs = recorder and GraphedTrunk(policy.core, recorder)
                    work = partial(denoise, policy, asked, last_block())
                    work()
                    found[f"{way}_ms"] = ms = 1e3 * kit.timer.seconds(work) / STEPS
                    rate = kit.rate(rows * step, ms)
                    found |= {f"{way}_{key}": value for key, value in rate.items()}
                if policy.graphs:
                    found["recordings"] = len(policy.graphs.recordings)
                    found["peak_gb"] = kit.timer.peak_gb()
                yield f"{label}: step of {rows} rows, {kernels} kernels", found
    kit.free()


def compiled(kit: Kit) -> Results:
    """Time a step of SmolLM2, which waits for the host, with and without torch.compile.

    That of blocks is `model.compile`. With `reduce-overhead` the trunk is recorded by torch itself,
    the yardstick of `graphs`.
    """
    for label, how in (("SmolLM2", compile_blocks), ("SmolLM2, reduce-overhead", compile_trunk)):
        _, policy = base(SMOLLM2, kit)
        yield from compiling(kit, policy, label, requests(64, PROMPT), STEPS, how)


def compile_trunk(core: Any) -> None:
    """Compile the trunk for one shape, launched as CUDA graphs."""
    core.trunk = torch.compile(core.trunk, mode="reduce-overhead")
