"""RMSNorm, rotary embeddings and SwiGLU with the operators `dopsd::*`, and their gradients.

On a GPU an operator is one Triton kernel, or two for queries and keys. It reads its arguments and
writes its results once, so that its traffic is the bytes of both; what it overwrites counts twice.
What is kept for the backward pass, in bytes per token, layer and unit of width D in 16-bit numbers,
with 3 D in the feed-forward as in LLaDA-8B:

    attn_norm: its input                 2
    adapters of q, k, v: their input     2 (lora.py computes dropout again)
    rotary: nothing                      0
    attention: q, k, v and its output    8
    ff_norm: the sum of the residual     2
    adapter of up: its input             2
    swiglu: gate and up                 12

Together 28. Plain torch keeps 38, or 46 with dropout of adapters: each norm its input in float32,
SwiGLU silu(gate) too, and each adapter a copy of its input and a mask of a byte.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from dopsd.models.kernels import launch  # registers the kernels
from dopsd.models.kernels.operators import (
    Kernels,
    add_rms_norm,
    add_rms_norm_backward,
    rms_norm,
    rms_norm_backward,
    rotary,
    swiglu,
    swiglu_backward_,
)

__all__ = ["FusedKernels", "launch"]


class Context(Protocol):
    """What autograd hands from a forward to its backward pass."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    inverse: bool  # of rotary

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare outputs without a gradient."""

    def set_materialize_grads(self, value: bool) -> None:
        """Declare whether an absent gradient is given as zeros."""


class FusedKernels(Kernels):
    """Compute with the fused operators; the same to the bit on a CPU."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As Kernels.norm."""
        return self.norm_beside(x, weight, eps)[0]

    def norm_beside(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As Kernels.norm_beside."""
        normalised, same = NormBeside.apply(x, weight, eps)
        return normalised, same

    def add_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """As Kernels.add_norm."""
        normalised, total, _ = add_rms_norm(x, residual, weight, eps)
        return normalised, total

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """As Kernels.rotate; results are stored as [B, T, heads, width]."""
        q, k = rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin, False)
        return q.transpose(1, 2), k.transpose(1, 2)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """As Kernels.swiglu."""
        product: Tensor = swiglu(gate, up)
        return product


class NormBeside(torch.autograd.Function):
    """A norm that passes its input on: an operator must not return its argument."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return x normalised, and x."""
        normalised, scale = rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.set_materialize_grads(False)
        return normalised, x

    @staticmethod
    def backward(ctx: Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradient of both outputs together, and that of the weight."""
        grad, of_x = grads
        return *_norm_gradients(ctx, grad, of_x, ctx.needs_input_grad[1]), None


def _norm_gradients(
    ctx: Context, grad: Tensor | None, of_input: Tensor | None, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a norm's input and weight.

    Args:
        ctx: with the input, the weight and the scale.
        grad: gradient of what the norm returned; None if that was not used.
        of_input: gradient of the input from its other use, or None.
    """
    if grad is None:
        return of_input, None
    of_input, of_weight = (
        rms_norm_backward(grad, *ctx.saved_tensors, needs_weight)
        if of_input is None
        else add_rms_norm_backward(grad, of_input, *ctx.saved_tensors, needs_weight)
    )
    return of_input, of_weight if needs_weight else None


def _saved_by_add_norm(
    ctx: Context, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, ...]
) -> None:
    ctx.save_for_backward(output[1], inputs[2], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _add_norm_gradients(
    ctx: Context, grad: Tensor | None, of_total: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    of_x, of_weight = _norm_gradients(ctx, grad, of_total, ctx.needs_input_grad[2])
    return of_x, of_x, of_weight, None


def _saved_by_rotary(ctx: Context, inputs: tuple[Any, ...], output: object) -> None:
    ctx.save_for_backward(*inputs[2:4])
    ctx.inverse = inputs[4]


def _rotary_gradients(ctx: Context, of_q: Tensor, of_k: Tensor) -> tuple[Tensor | None, ...]:
    return (*rotary(of_q, of_k, *ctx.saved_tensors, not ctx.inverse), None, None, None)


def _saved_by_swiglu(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_gradients(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrite the saved tensors with the gradients; a second backward pass raises for it."""
    gate, up = ctx.saved_tensors
    swiglu_backward_(grad, gate, up)
    return gate, up


add_rms_norm.register_autograd(_add_norm_gradients, setup_context=_saved_by_add_norm)
rotary.register_autograd(_rotary_gradients, setup_context=_saved_by_rotary)
swiglu.register_autograd(_swiglu_gradients, setup_context=_saved_by_swiglu)
