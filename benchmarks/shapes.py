"""The shapes of the benchmarks: models, prompts and lengths for ours and plain.

`embedded`: the repository's trained base. `vocabulary`: LLaDA's vocabulary on 50 million
parameters, for a CPU. `8b`: LLaDA-8B with random weights, for a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from random_weights import PROMPT, moved, random_policy
from torch import Tensor

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.models.config import AdapterConfig
from dopsd.models.llada.configuration import TOY, LladaConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.pipeline.shape import Shape as Flops
from dopsd.pipeline.shape import lora_parameters
from dopsd.rollout.config import Decoding
from dopsd.rollout.prompts import decoding

# LLaDA's vocabulary on 50 million parameters: 40 of them are embedding and head
WIDE = {"d_model": 160, "n_heads": 5, "n_kv_heads": 5, "n_layers": 32, "mlp_hidden_size": 432}
WIDE_ROWS = 8
CHUNK = 14  # states of one update: 112 recorded states in the published 8 chunks
TOLERANCE, HALF = 1e-5, 0.1  # relative tolerance in float32 and in bfloat16
EMPTY = {"evaluate": {"protocols": {"greedy": {}}}}  # settings with all defaults


@dataclass(frozen=True)
class Shape:
    """A policy, prompts and lengths at which both sides are timed."""

    name: str
    policy: LlmPolicy
    prompts: list[Tensor]  # R x [P], all of one length
    sampling: Decoding
    method: DOpsdConfig
    micro_batch: int  # states
    flops: Flops
    ceiling: float  # measured matmul rate in the shape's dtype, FLOP/s
    tolerance: float  # relative, of loss and gradients
    steps: int | None = None  # timed steps of a rollout; None: all
    states: int | None = None  # states of one update; None: all of a trajectory

    @property
    def is_exact(self) -> bool:
        """Whether both sides must agree within float32's rounding."""
        return self.tolerance == TOLERANCE

    @property
    def short(self) -> Shape:
        """The shape with two rollouts of one block in four steps, if whole ones take minutes."""
        if self.steps is None:
            return self
        one = replace(self.sampling, gen_length=self.sampling.block_length, steps=4)
        return replace(self, prompts=self.prompts[:2], sampling=one, steps=None)


def random_prompts(rows: int, length: int, least: int, most: int) -> list[Tensor]:
    """Return random prompts without the mask id, which plain would fill in too.

    Args:
        rows: number of prompts.
        length: tokens of each prompt.
        least: the smallest token id.
        most: the upper bound of token ids, not included.
    """
    generator = torch.Generator().manual_seed(2)
    return list(torch.randint(least, most, (rows, length), generator=generator))


def embedded(rows: int, device: torch.device, is_toy: bool = False) -> Shape:
    """Return the trained embedded base in float32, with the settings of params.yaml."""
    params: Params = load_params(Path("params.yaml"))
    policy = moved(load_policy(params.model_of("sudoku"), params.train.lora, 0, device))
    prompts = random_prompts(rows, 17, 6, 90)
    rate = matmul_rate(device, torch.float32, 1024)
    flops = Flops(policy.core.config, lora_parameters(policy.core.config, params))
    sampling, micro_batch = decoding(params.sampling, 0.9), params.train.states_at_once
    return Shape(
        "embedded", policy, prompts, sampling, published(), micro_batch, flops, rate, TOLERANCE
    )


def vocabulary(rows: int, device: torch.device, is_toy: bool = False) -> Shape:
    """Return LLaDA's vocabulary on 50 million parameters in float32, with at most 8 rows."""
    return _random("vocabulary", LladaConfig(**WIDE), min(rows, WIDE_ROWS), device)


def eight_billion(rows: int, device: torch.device, is_toy: bool = False) -> Shape:
    """Return LLaDA-8B in bfloat16 with random weights; `is_toy`: two narrow layers."""
    config = LladaConfig(**TOY) if is_toy else LladaConfig()
    return _random("8b", config, 2 if is_toy else rows, device)


def _random(name: str, config: LladaConfig, rows: int, device: torch.device) -> Shape:
    is_large, lora = name == "8b", AdapterConfig(dropout=0.0)
    dtype = torch.bfloat16 if is_large else torch.float32
    policy = moved(random_policy(config, lora, device, dtype))
    if is_large:
        policy.use_gradient_checkpointing()
    sampling = Decoding(gen_length=256, block_length=32, steps=128, temperature=0.9)
    prompts = random_prompts(rows, PROMPT, 0, config.eos_token_id)
    adapters = lora_parameters(
        config, Params.model_validate(EMPTY | {"train": {"lora": lora.model_dump()}})
    )
    rate = matmul_rate(device, dtype, 8192 if device.type == "cuda" else 2048)
    micro, steps = (8, None) if is_large and device.type == "cuda" else (2, 16)
    flops = Flops(config, adapters)
    return Shape(
        name,
        policy,
        prompts,
        sampling,
        published(),
        micro,
        flops,
        rate,
        HALF if is_large else TOLERANCE,
        steps=steps,
        states=CHUNK,
    )


SHAPES: dict[str, Callable[..., Shape]] = {
    "embedded": embedded,
    "vocabulary": vocabulary,
    "8b": eight_billion,
}


def published() -> DOpsdConfig:
    """Return the published settings with all states of a trajectory in one update."""
    return DOpsdConfig(updates_per_trajectory=1, drop_remainder=False)


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the FLOP/s of square matrix products after a warm-up: the ceiling of utilisation."""
    a = torch.randn(size, size, device=device, dtype=dtype)
    seconds = 0.0
    for products in (3, 10):  # the first three are the warm-up
        wait(device)
        started = time.perf_counter()
        for _ in range(products):
            a @ a
        wait(device)
        seconds = time.perf_counter() - started
    return 10 * 2 * size**3 / seconds


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
