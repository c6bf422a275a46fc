"""Memory of a GPU at full size, estimated from shapes.

Bytes of activations are those that `tests/gpu` counts on a pretended GPU; nobody has measured them
on a real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig, kind_of
from dopsd.models.backends import dtype_of
from dopsd.pipeline.shape import Shape, trains_all
from dopsd.rollout.config import SamplingConfig
from dopsd.rollout.likeliest import HEAD_ENTRIES

if TYPE_CHECKING:
    from dopsd.config.params import Params

HEAD_BYTES = 23  # an entry of the logits while tokens are chosen, with their noise
CHECKPOINT_BYTES = 2  # a token, layer and unit of width, with gradient checkpointing: its input
NF4_BYTES = 0.53  # a weight; 64 of them share a scale


@dataclass(frozen=True)
class BlockBytes:
    """Bytes of a block in bfloat16, for each token and unit of width."""

    kept: int  # saved for the backward pass
    dropout: int  # saved in addition where adapters have dropout: their inputs and bytes of masks
    whole: int  # saved in addition where all weights train: inputs of layers without an adapter
    passing: int  # most at once in a forward pass without gradients


KERNEL_BYTES = {  # by model.kernels
    "torch": BlockBytes(kept=38, dropout=8, whole=10, passing=30),
    "liger": BlockBytes(kept=28, dropout=0, whole=6, passing=24),  # computes dropout again
}


def block_bytes(kernels: str) -> BlockBytes:
    """Return the bytes of a block with these kernels; `auto` is liger, as on a GPU that has it."""
    return KERNEL_BYTES["liger" if kernels == "auto" else kernels]


def memory(params: Params, shape: Shape, length: int) -> dict[str, float]:
    """Return the bytes of each GPU by what they hold, for the larger of sampling and training."""
    model = params.model_of(params.matrix.tasks[0])
    wide = 4 if dtype_of(model) == "float32" else 2
    linear = NF4_BYTES if model.quantization == "nf4" else wide
    linear /= params.launch.processes if params.launch.shard else 1
    is_plain = model.kernels == "auto" and not shape.config.is_fused_by_auto
    block = block_bytes("torch" if is_plain else model.kernels)
    return {
        "weights": linear * shape.stored_parameters
        + wide * (shape.parameters - shape.stored_parameters),
        **trained_bytes(params, shape),
        "work": (wide / 2)
        * max(
            update_bytes(params, shape, block, length),
            rollout_bytes(params.sampling, shape, block, length),
        ),
        **(
            {"graphs": (wide / 2) * graph_bytes(params, shape, block, length)}
            if model.cuda_graphs
            else {}
        ),
    }


def graph_bytes(params: Params, shape: Shape, block: BlockBytes, length: int) -> float:
    """Return the bytes of recordings: all forwards work in the same memory, as the largest needs.

    A recorded update keeps its own, and gradients. None is recorded with dropout or gradient
    checkpointing.
    """
    prompt = length - params.sampling.gen_length
    each = [params.sampling, *params.evaluate.protocols.values()]
    tokens = max(way.batch_size * (prompt + way.gen_length) for way in each)
    is_plain = params.train.has_dropout or params.train.gradient_checkpointing
    trained = 2 * shape.parameters if trains_all(params) else 4 * shape.lora_parameters
    kept = 0 if is_plain else update_bytes(params, shape, block, length) + trained
    return block.passing * tokens * shape.config.d_model + kept


def trained_bytes(params: Params, shape: Shape) -> dict[str, float]:
    """Return the bytes of what trains: gradients, moments, a reference kept apart, an average.

    All weights also have a copy in float32, since `weights` counts them in bfloat16.
    """
    configs = [vars(params.method)[kind_of(name)] for name in params.matrix.methods]
    average = 4.0 if any(vars(config).get("teacher") == "ema" for config in configs) else 0
    if not trains_all(params):
        start = 4 if params.train.reference == "start" else 0  # the adapter of start_from
        return {"adapter and optimizer": (16 + start + average) * shape.lora_parameters}
    reference = 2.0 if any(config.needs_reference for config in configs) else 0
    kept = {"frozen copy": reference, "moving average": average}
    return {"all weights and optimizer": 16.0 * shape.parameters} | {
        name: size * shape.parameters for name, size in kept.items() if size
    }


def update_bytes(params: Params, shape: Shape, block: BlockBytes, length: int) -> float:
    """Return the bytes of a micro-batch's forward and backward pass."""
    t, c = params.train, shape.config
    extra = block.whole if trains_all(params) else block.dropout if t.has_dropout else 0
    kept = block.kept + extra
    is_checkpointed = t.gradient_checkpointing
    per_unit = CHECKPOINT_BYTES * c.n_layers + kept if is_checkpointed else kept * c.n_layers
    copies = 2 * shape.lora_parameters  # the adapter in bfloat16, of one block or of all
    entries = t.states_at_once * c.embedding_size
    return (
        t.states_at_once * length * c.d_model * per_unit
        + (copies / c.n_layers if is_checkpointed else copies)
        + entries * loss_bytes(params)
    )


def loss_bytes(params: Params) -> int:
    """Return the most bytes of a sequence's logits in a method's loss, per entry of the head."""
    kinds = map(kind_of, params.matrix.methods)
    configs: list[AlgorithmConfig] = [vars(params.method)[kind] for kind in kinds]
    return max(config.logit_bytes(params.sampling) for config in configs)


def rollout_bytes(sampling: SamplingConfig, shape: Shape, block: BlockBytes, length: int) -> float:
    """Return the bytes of a denoising step: of a block, or of choosing tokens after them."""
    c, rows = shape.config, sampling.batch_size
    tokens = rows * length * c.d_model
    logits = min(HEAD_ENTRIES, rows * sampling.block_length * c.embedding_size)
    return max(block.passing * tokens, 2 * tokens + HEAD_BYTES * logits)
