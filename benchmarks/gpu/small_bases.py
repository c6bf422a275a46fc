"""Parts at the shape of Tiny-A2D (0.6 billion weights), which many rows fill and few do not."""

from __future__ import annotations

import torch
from kit import BLOCK, Kit, Results
from llada_8b import STEPS, last_block, requests
from random_weights import PROMPT, moved, random_policy, settings

from dopsd.models.architecture import config_class
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.rollout.sampler import denoise

SHAPE = {  # of dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
    "pad_token_id": 151643,
}


def tiny_a2d(kit: Kit) -> Results:
    """Sample the first block at several batch sizes, which tell what a profile should set."""
    kit.free()
    config = config_class("a2d_qwen3")(**SHAPE)
    if kit.is_toy:
        config = config.toy()
    config._attn_implementation = "sdpa"
    lora = settings().train.lora.model_copy(update={"dropout": 0.0})
    policy = moved(random_policy(config, lora, kit.device, torch.bfloat16))
    shape = Shape(config, lora_parameters(config, settings()))
    length, how = PROMPT + BLOCK, last_block()
    step = shape.denoising_step(length, BLOCK * (1 + 1 / STEPS) / 2)
    denoise(policy, requests(2, PROMPT), how)
    for rows in (2,) if kit.is_toy else (16, 64, 128, 256):
        asked = requests(rows, PROMPT)
        kit.timer.peak_gb()
        ms = 1e3 * kit.timer.seconds(lambda asked=asked: denoise(policy, asked, how)) / STEPS
        found = {"ms": ms, "tokens_per_second": rows * BLOCK / STEPS / ms * 1e3}
        found |= kit.rate(rows * step, ms) | {"peak_gb": kit.timer.peak_gb()}
        yield f"Tiny-A2D: denoising step, {rows} rows of {length} tokens", found
    asked = requests(2 if kit.is_toy else 64, PROMPT)
    work = lambda: denoise(policy, asked, last_block(2))  # noqa: E731
    yield f"Tiny-A2D: kernels of two steps, {len(asked)} rows", kit.timer.kernels(work)
