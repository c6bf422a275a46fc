"""What the parts share: the card, a model on it, and what `dopsd estimate` says of its memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from random_weights import PROMPT, moved, random_policy, settings
from timing import Timer

from dopsd.models.backends import kernels_of
from dopsd.models.llada.configuration import TOY, LladaConfig
from dopsd.models.llm_policy import LlmPolicy
from dopsd.pipeline.estimate.memory import block_bytes, memory, rollout_bytes, update_bytes
from dopsd.pipeline.shape import Shape, lora_parameters

Result = tuple[str, dict[str, Any]]  # a name and its figures
Results = Iterator[Result]

ANSWER, BLOCK = 256, 32  # tokens of an answer and of its blocks, as published
LENGTH = PROMPT + ANSWER
PEAK = 989e12  # bfloat16 FLOP/s of an H100 by its data sheet
LAYERS = (32, 16, 8, 4, 2)  # of LLaDA-8B, and fewer on cards with less memory
FILLED = 0.92  # share of the card's memory that a case may need


@dataclass
class Kit:
    """The device, and what has been made and measured on it.

    Attributes:
        device: the card, or the CPU in a rehearsal.
        is_toy: whether shapes are tiny.
        product: FLOP/s of a large matrix product in bfloat16, once it is measured.
    """

    device: torch.device
    is_toy: bool
    product: float = float("nan")
    _policies: dict[tuple[int, str, float], LlmPolicy] = field(default_factory=dict)

    @cached_property
    def timer(self) -> Timer:
        """The clock of the device."""
        return Timer(self.device)

    @cached_property
    def kernels(self) -> str:
        """The kernels that `auto` takes here: liger, or torch."""
        return kernels_of(settings().model, self.device, LladaConfig())

    @cached_property
    def layers(self) -> int:
        """Layers of the model: the most at which an update of 8 states fits the card."""
        if self.is_toy:
            return TOY["n_layers"]
        room = FILLED * torch.cuda.get_device_properties(self.device).total_memory / 1e9
        return next((n for n in LAYERS if self.update_gb(8, layers=n) < room), LAYERS[-1])

    def config(self, layers: int | None = None) -> LladaConfig:
        """Return LLaDA-8B's shape with so many layers."""
        shape = TOY if self.is_toy else {"n_layers": layers or self.layers}
        config = LladaConfig(**shape)
        config._attn_implementation = "sdpa"
        return config

    def llada(
        self, layers: int | None = None, kernels: str | None = None, dropout: float = 0.05
    ) -> LlmPolicy:
        """Return LLaDA-8B with random weights and an adapter; it is kept until `free`."""
        key = (layers or self.layers, kernels or self.kernels, dropout)
        if key not in self._policies:
            lora = settings().train.lora.model_copy(update={"dropout": dropout})
            policy = random_policy(self.config(layers), lora, self.device, torch.bfloat16, key[1])
            self._policies[key] = moved(policy)
        return self._policies[key]

    def free(self) -> None:
        """Give the memory of all models back."""
        self._policies.clear()
        gc.collect()  # a model is in cycles
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.timer.peak_gb()

    def shape(self, layers: int | None = None) -> Shape:
        """Return what `dopsd estimate` counts operations with."""
        config = self.config(layers)
        return Shape(config, lora_parameters(config, settings()))

    def rollout_gb(self, rows: int, layers: int | None = None) -> float:
        """Return the gigabytes of sampling so many rows, by the model of `dopsd estimate`."""
        params = settings(f"sampling.batch_size={rows}", f"model.kernels={self.kernels}")
        shape = self.shape(layers)
        held = memory(params, shape, LENGTH)
        work = rollout_bytes(params.sampling, shape, block_bytes(self.kernels), LENGTH)
        return (held["weights"] + held["adapter and optimizer"] / 4 + work) / 1e9

    def update_gb(
        self, states: int, is_checkpointed: bool = False, layers: int | None = None
    ) -> float:
        """Return the gigabytes of an update of so many states, by the model of `dopsd estimate`."""
        params = settings(
            f"train.micro_batch_states={states}",
            f"train.gradient_checkpointing={str(is_checkpointed).lower()}",
            f"model.kernels={self.kernels}",
        )
        shape = self.shape(layers)
        held = memory(params, shape, LENGTH)
        work = update_bytes(params, shape, block_bytes(self.kernels), LENGTH)
        return (held["weights"] + held["adapter and optimizer"] + work) / 1e9

    def rate(self, flops: float, ms: float) -> dict[str, float]:
        """Return what share of the card's speed some operations reached.

        Args:
            flops: useful operations: what is computed again for memory's sake does not count.
            ms: milliseconds that they took.
        """
        rate = flops / ms * 1e3
        shares = {"tflops": rate / 1e12, "of_own_product": rate / self.product}
        return shares | ({"of_989_tflops": rate / PEAK} if self.is_h100 else {})

    @cached_property
    def is_h100(self) -> bool:
        """Whether the card is an H100, whose peak is PEAK."""
        return self.timer.is_gpu and "H100" in torch.cuda.get_device_name(self.device)
