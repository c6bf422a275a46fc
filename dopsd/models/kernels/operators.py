"""The operators `dopsd::*` on a CPU: what plain torch and its gradients compute, to the bit.

At the end are their shapes without values; fused.py registers their Triton kernels for GPUs.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu


class Kernels:
    """Compute in plain torch, one kernel for each operator, on any device."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise x [..., D] in float32, return to its dtype, then scale by weight [D]."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return wide.to(x.dtype) * weight

    def norm_beside(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return x normalised, and x for its other use: fused kernels add both gradients."""
        return self.norm(x, weight, eps), x

    def add_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the normalised sum of x and residual [..., D], and the sum."""
        total = residual + x
        return self.norm(total, weight, eps), total

    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Apply rotary embeddings to queries and keys [B, heads, T, width]; tables [T, width]."""
        return rotated(q, cos, sin), rotated(k, cos, sin)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        return silu(gate) * up


def rope_tables(
    length: int, width: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [length, width] in float32, for the half-split (NeoX) rotation."""
    rates = theta ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    # [T, width/2]
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * rates
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of x [..., T, width] against each other (NeoX), in float32."""
    wide = x.float()
    first, second = wide.chunk(2, -1)
    return (wide * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


PLAIN = Kernels()


def _scale(x: Tensor, eps: float) -> Tensor:
    """Return 1 / RMS of x [..., D] in float32, [..., 1]."""
    return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


@torch.library.custom_op(
    "dopsd::rms_norm",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x [..., D] normalised and scaled, and 1 / RMS [...] in float32 for the backward."""
    return PLAIN.norm(x, weight, eps), _scale(x, eps)[..., 0]


@torch.library.custom_op(
    "dopsd::add_rms_norm",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum of x and residual [..., D], the sum, and its 1 / RMS [...]."""
    normalised, total = PLAIN.add_norm(x, residual, weight, eps)
    return normalised, total, _scale(total, eps)[..., 0]


@torch.library.custom_op(
    "dopsd::rms_norm_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor grad, Tensor x, Tensor weight, Tensor scale, bool with_weight)"
    " -> (Tensor, Tensor)",
)
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of weight; the latter is empty unless it is asked for.

    Args:
        grad: gradient of the normalised x, [..., D].
        weight: [D].
        scale: 1 / RMS of x, [...].
    """
    of_weight = _of_weight(grad, x, scale) if with_weight else weight.new_empty(0)
    direct, by_scale = _of_input(grad, x, weight, scale)
    return (direct + by_scale).to(x.dtype), of_weight


def _of_input(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two summands of a norm's gradient in float32, computed as autograd does."""
    wide, scale, inner = x.float(), scale[..., None], (grad * weight).float()
    of_mean = -0.5 * (inner * wide).sum(-1, keepdim=True) * scale.pow(3)
    return inner * scale, (of_mean / x.shape[-1]).expand_as(wide) * (2 * wide)


def _of_weight(grad: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    return (grad * (x.float() * scale[..., None]).to(x.dtype)).sum_to_size(x.shape[-1:])


@torch.library.custom_op(
    "dopsd::add_rms_norm_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor grad, Tensor of_total, Tensor total, Tensor weight, Tensor scale,"
    " bool with_weight) -> (Tensor, Tensor)",
)
def add_rms_norm_backward(
    grad: Tensor, of_total: Tensor, total: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both summands, which are equal, and of weight.

    Args:
        grad: gradient of the normalised sum, [..., D].
        of_total: gradient of the sum from its other use.
        weight: [D].
        scale: 1 / RMS of the sum, [...].
    """
    of_weight = _of_weight(grad, total, scale) if with_weight else weight.new_empty(0)
    direct, by_scale = _of_input(grad, total, weight, scale)
    if total.dtype == torch.float32:  # its own wide copy: autograd adds three gradients in turn
        return of_total + direct + by_scale, of_weight
    return of_total + (direct + by_scale).to(total.dtype), of_weight


@torch.library.custom_op(
    "dopsd::rotary",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor q, Tensor k, Tensor cos, Tensor sin, bool inverse) -> (Tensor, Tensor)",
)
def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys [B, T, heads, width] by the angles of tables [T, width], or back."""
    tables = cos[:, None], (-sin if inverse else sin)[:, None]
    return rotated(q, *tables).contiguous(), rotated(k, *tables).contiguous()


@torch.library.custom_op(
    "dopsd::swiglu",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor gate, Tensor up) -> Tensor",
)
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return PLAIN.swiglu(gate, up)


@torch.library.custom_op(
    "dopsd::swiglu_backward_",
    mutates_args=("gate", "up"),
    device_types="cpu",
    schema="(Tensor grad, Tensor(a!) gate, Tensor(b!) up) -> ()",
)
def swiglu_backward_(grad: Tensor, gate: Tensor, up: Tensor) -> None:
    """Overwrite gate and up with their gradients, given the gradient of silu(gate) * up."""
    of_up = grad * silu(gate)
    gate.copy_(torch.ops.aten.silu_backward(grad * up, gate))
    up.copy_(of_up)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


@add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x), scale


@rms_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), weight.new_empty(weight.shape if with_weight else 0)


@add_rms_norm_backward.register_fake
def _(
    grad: Tensor, of_total: Tensor, total: Tensor, weight: Tensor, scale: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(total), weight.new_empty(weight.shape if with_weight else 0)


@rotary.register_fake
def _(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


@swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return torch.empty_like(gate)


@swiglu_backward_.register_fake
def _(grad: Tensor, gate: Tensor, up: Tensor) -> None:
    return None
