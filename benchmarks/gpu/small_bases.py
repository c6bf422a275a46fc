"""Rollouts at the shapes of small bases, which many rows fill and few do not."""

from __future__ import annotations

import torch
from kit import BLOCK, Kit, Results
from llada_8b import STEPS, last_block, requests
from random_weights import PROMPT, moved, random_policy, settings

from dopsd.models.registry import published
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.rollout.sampler import denoise

TINY_A2D, SMOLLM2 = "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", "SmolLM2-135M-diffusion"
ROWS = (16, 64, 128, 256)


def rollouts(name: str, kit: Kit) -> Results:
    """Sample the first block at several batch sizes, which tell what a profile should set.

    Args:
        name: the base, as `dopsd models` lists it.
        kit: the device.
    """
    kit.free()
    config = next(base for base in published() if base.name == name).config()
    assert config is not None
    if config.eos_token_id is None:  # any token will do for random weights
        config.eos_token_id = 0
    if kit.is_toy:
        config = config.toy()
    config._attn_implementation = "sdpa"
    lora = settings().train.lora.model_copy(update={"dropout": 0.0})
    policy = moved(random_policy(config, lora, kit.device, torch.bfloat16))
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
