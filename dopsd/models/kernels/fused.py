"""RMSNorm, rotary embeddings and SwiGLU with the operators `dopsd::*`, and their gradients.

On a GPU an operator is one Triton kernel, of liger-kernel or ours, or two for queries and keys. It
reads its arguments and writes its results once, so that its traffic is the bytes of both; what it
overwrites counts twice. The kernels' packages are imported at the first call.

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

from typing import Any

import torch
from torch import Tensor

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

Context = Any  # what autograd hands from a forward to its backward pass
# liger's offset of the weight, and its casting mode "llama": values are rounded before the weight
WEIGHT = (0.0, 0)
ROWS = 4  # of a program of the norms' backward pass


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
        if x.dtype != residual.dtype:  # autocast: the sum of both is wide, as torch's own
            wide = torch.promote_types(x.dtype, residual.dtype)
            x, residual = x.to(wide), residual.to(wide)
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


@rms_norm.register_kernel("cuda")
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    with torch.cuda.device_of(x):
        y, _, scale, *_ = rms_norm_forward(x.contiguous(), weight, eps, *WEIGHT, row_mode=True)
    return y, scale.view(x.shape[:-1])


@add_rms_norm.register_kernel("cuda")
def _add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

    with torch.cuda.device_of(x):
        y, total, scale, *_ = fused_add_rms_norm_forward(
            x.contiguous(), residual.contiguous(), weight, eps, *WEIGHT
        )
    return y, total, scale.view(x.shape[:-1])


@rms_norm_backward.register_kernel("cuda")
def _rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.rms_norm import rms_norm_backward as backward
    from liger_kernel.ops.utils import calculate_settings

    if not with_weight:
        return _of_input(grad, None, x, weight, scale), weight.new_empty(0)
    width = x.shape[-1]
    with torch.cuda.device_of(x):
        of_x, of_weight = backward(
            grad.contiguous(),
            x.reshape(-1, width),
            weight,
            scale.reshape(-1),
            *WEIGHT,
            *calculate_settings(width),
            in_place=False,
            row_mode=True,
        )
    return of_x, of_weight


@add_rms_norm_backward.register_kernel("cuda")
def _add_rms_norm_backward(
    grad: Tensor, of_total: Tensor, total: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    if not with_weight:
        return _of_input(grad, of_total, total, weight, scale), weight.new_empty(0)
    of_norm, of_weight = _rms_norm_backward(grad, total, weight, scale, with_weight)
    return of_norm.add_(of_total), of_weight


def _of_input(
    grad: Tensor, of_total: Tensor | None, x: Tensor, weight: Tensor, scale: Tensor
) -> Tensor:
    """Return the gradient of a norm's input x, plus `of_total`.

    liger-kernel's own launcher compiles its kernel for each number of rows, and starts no more
    programs than the gradient of the weight, which is frozen here, would allow.
    """
    from liger_kernel.ops.fused_add_rms_norm import _fused_add_rms_norm_backward_kernel as kernel
    from liger_kernel.ops.utils import calculate_settings, torch_to_triton_dtype

    width, rows = x.shape[-1], scale.numel()
    block, warps = calculate_settings(width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    beside = grad if of_total is None else of_total.contiguous()
    with torch.cuda.device_of(x):
        kernel[(-(-rows // ROWS),)](
            grad.contiguous(),
            width,
            beside,
            width,
            out,
            width,
            x.contiguous(),
            width,
            torch_to_triton_dtype[x.dtype],
            weight,
            1,
            scale.contiguous(),
            1,
            None,  # gradient of the weight
            0,
            rows,
            width,
            WEIGHT[0],
            ROWS,
            WEIGHT[1],
            BLOCK_SIZE=block,
            has_dS_out=of_total is not None,
            COMPUTE_DW=False,
            num_warps=warps,
        )
    return out


@rotary.register_kernel("cuda")
def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    from dopsd.models.kernels.triton_rotary import rotate

    cos, sin = cos.contiguous(), sin.contiguous()
    with torch.cuda.device_of(q):
        return rotate(q, cos, sin, inverse), rotate(k, cos, sin, inverse)


@swiglu.register_kernel("cuda")
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    from liger_kernel.ops.swiglu import swiglu_forward

    product: Tensor = swiglu_forward(gate.contiguous(), up.contiguous())[2]
    return product


@swiglu_backward_.register_kernel("cuda")
def _swiglu_backward_(grad: Tensor, gate: Tensor, up: Tensor) -> None:
    from liger_kernel.ops.swiglu import swiglu_backward

    swiglu_backward(gate, up, grad.contiguous())
