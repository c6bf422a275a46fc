"""The cost of one forward pass of a model, in floating-point operations, from its shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import DenoiserConfig
    from dopsd.rollout.config import SamplingConfig


@dataclass(frozen=True)
class Shape:
    """Floating-point operations of a model; `length` is the number of tokens of a sequence."""

    config: DenoiserConfig
    lora_parameters: int

    @property
    def block_parameters(self) -> int:
        """Parameters of the linear layers of all blocks."""
        layers = self.config.linear_shapes().values()
        return self.config.n_layers * sum(inputs * outputs for inputs, outputs in layers)

    @property
    def parameters(self) -> int:
        """All parameters: blocks with all experts, embedding, head and norms."""
        c = self.config
        vocabulary = c.embedding_size * c.d_model * (1 if c.weight_tying else 2)
        return self.stored_parameters + vocabulary + (2 * c.n_layers + 1) * c.d_model

    @property
    def stored_parameters(self) -> int:
        """Parameters of all blocks, with those of experts that a token does not use."""
        return self.block_parameters + self.config.idle_parameters

    def attention(self, length: float, seen: float) -> float:
        """Return the operations of attention's two products in one forward pass."""
        return 4 * length * seen * self.config.attention_width * self.config.n_layers

    def forward(self, length: float, seen: float | None = None) -> float:
        """Return the operations of one forward pass through the blocks, without the head.

        Args:
            seen: tokens that they attend to, with those in a cache; None: `length`.
        """
        seen = length if seen is None else seen
        return 2 * length * self.block_parameters + self.attention(length, seen)

    def scored_length(self, prompt: int, completion: int) -> int:
        """Return the tokens of a pass that scores a completion.

        Block-causal attention takes the completion twice, whole and masked.
        """
        return prompt + completion * (2 if self.config.block_size else 1)

    def denoising_step(self, length: float, masked: float, seen: float | None = None) -> float:
        """Return the operations of one step of one row, with the adapter.

        Args:
            masked: masks of the current block, at which the head is computed.
            seen: tokens that they attend to, with those in a cache; None: `length`.
        """
        head = 2 * masked * self.config.d_model * self.config.embedding_size
        return self.forward(length, seen) + 2 * length * self.lora_parameters + head

    def answer(self, prompt: int, sampling: SamplingConfig) -> float:
        """Return the operations of all denoising steps of one answer."""
        steps_per_block = sampling.steps * sampling.block_length / sampling.gen_length
        masked = sampling.block_length * (1 + 1 / steps_per_block) / 2  # on average
        whole, size = prompt + sampling.gen_length, self.config.block_size
        if size is None:
            return sampling.steps * self.denoising_step(whole, masked)
        seen = prompt + sampling.gen_length / 2  # on average, most of it in the cache
        cached = self.forward(prompt) + self.forward(sampling.gen_length, seen)  # each token once
        return cached + sampling.steps * self.denoising_step(size, masked, seen)

    def state(self, length: int, is_checkpointed: bool) -> float:
        """Return the operations of training on one state: teacher forward, and the student's."""
        return self.forward(length) + self.trained(length, is_checkpointed)

    def trained(self, length: int, is_checkpointed: bool) -> float:
        """Return the operations of a forward and backward pass of one sequence.

        They are: forward, gradients of activations and of what trains, and with checkpointing the
        blocks again, but for a block's last layer: no gradient needs what it returned.
        """
        adapter = 2 * length * self.lora_parameters
        student = self.forward(length) + adapter
        products = 2 if self.lora_parameters else 4  # for activations, and for all weights
        backward = products * length * self.block_parameters + 2 * self.attention(length, length)
        inputs, outputs = list(self.config.linear_shapes().values())[-1]
        repeated = student - 2 * length * self.config.n_layers * inputs * outputs
        return student + backward + 2 * adapter + (repeated if is_checkpointed else 0)


def lora_parameters(config: DenoiserConfig, params: Params) -> int:
    """Count the adapter's parameters: r x (in + out) for every adapted layer; 0 without one."""
    if trains_all(params):
        return 0
    shapes, lora = config.linear_shapes(), params.train.lora
    if unknown := [name for name in lora.targets if name not in shapes]:
        raise Code.LORA_TARGETS.error(
            f"train.lora.targets: {', '.join(unknown)}: no layer of this base; there are"
            f" {', '.join(shapes)}"
        )
    return config.n_layers * lora.r * sum(sum(shapes[name]) for name in lora.targets)


def trains_all(params: Params) -> bool:
    """Return whether a method of the matrix trains all weights."""
    return any(params.of(name).train.adapter is None for name in params.matrix.methods)


def size_of(model: ModelConfig) -> DenoiserConfig:
    """Return the config of a base; if it is not here, that of the published one of its name."""
    from dopsd.models.registry import config_of, named

    base = Path(model.path)
    if (base / "config.json").is_file():
        return config_of(model)
    row = named(base)
    if row and (config := row.config()):
        if model.block_size:
            config.block_size = model.block_size
        return config
    raise Code.NO_MODEL.error(
        f"model.path: {base}: is not here, and its size is not known; download it first"
    )
