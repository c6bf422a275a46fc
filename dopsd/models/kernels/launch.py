"""The operators of operators.py on a GPU: Triton kernels of liger-kernel, and one of ours.

Packages are imported at the first call, so that the operators exist without them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dopsd.models.kernels import operators

# liger's offset of the weight, and its casting mode "llama": values are rounded before the weight
WEIGHT = (0.0, 0)
STAGES = 2  # of the pipeline of loads, as in its forward


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
            needs_dw=with_weight,
        )
    return of_x, weight.new_empty(0) if of_weight is None else of_weight


@operators.add_rms_norm_backward.register_kernel("cuda")
def add_rms_norm_backward(
    grad: Tensor, of_total: Tensor, total: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    """See operators.add_rms_norm_backward."""
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_backward as backward
    from liger_kernel.ops.utils import calculate_settings

    with torch.cuda.device_of(total):
        of_x, _, of_weight = backward(
            grad.contiguous(),
            of_total.contiguous(),
            total,
            weight,
            scale.reshape(-1),
            *WEIGHT,
            *calculate_settings(total.shape[-1]),
            num_stages=STAGES,
            in_place=False,
            needs_dw=with_weight,
        )
    return of_x, weight.new_empty(0) if of_weight is None else of_weight


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
