"""The operators of operators.py on a GPU: Triton kernels of liger-kernel, and one of ours.

Packages are imported at the first call, so that the operators exist without them.
"""

import torch
from torch import Tensor

from dopsd.models.kernels import operators

# liger's offset of the weight, and its casting mode "llama": values are rounded before the weight
WEIGHT = (0.0, 0)
ROWS = 4  # of a program of the norms' backward pass


@operators.rms_norm.register_kernel("cuda")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See operators.rms_norm."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    with torch.cuda.device_of(x):
        y, _, scale, *_ = rms_norm_forward(x.contiguous(), weight, eps, *WEIGHT, row_mode=True)
    return y, scale.view(x.shape[:-1])


@operators.add_rms_norm.register_kernel("cuda")
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See operators.add_rms_norm."""
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

    with torch.cuda.device_of(x):
        y, total, scale, *_ = fused_add_rms_norm_forward(
            x.contiguous(), residual.contiguous(), weight, eps, *WEIGHT
        )
    return y, total, scale.view(x.shape[:-1])


@operators.rms_norm_backward.register_kernel("cuda")
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    """See operators.rms_norm_backward."""
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


@operators.add_rms_norm_backward.register_kernel("cuda")
def add_rms_norm_backward(
    grad: Tensor, of_total: Tensor, total: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    """See operators.add_rms_norm_backward."""
    if not with_weight:
        return _of_input(grad, of_total, total, weight, scale), weight.new_empty(0)
    of_norm, of_weight = rms_norm_backward(grad, total, weight, scale, with_weight)
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


@operators.rotary.register_kernel("cuda")
def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    """See operators.rotary."""
    from dopsd.models.kernels.triton_rotary import rotate

    cos, sin = cos.contiguous(), sin.contiguous()
    with torch.cuda.device_of(q):
        return rotate(q, cos, sin, inverse), rotate(k, cos, sin, inverse)


@operators.swiglu.register_kernel("cuda")
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See operators.swiglu."""
    from liger_kernel.ops.swiglu import swiglu_forward

    product: Tensor = swiglu_forward(gate.contiguous(), up.contiguous())[2]
    return product


@operators.swiglu_backward_.register_kernel("cuda")
def swiglu_backward_(grad: Tensor, gate: Tensor, up: Tensor) -> None:
    """See operators.swiglu_backward_."""
    from liger_kernel.ops.swiglu import swiglu_backward

    swiglu_backward(gate, up, grad.contiguous())
