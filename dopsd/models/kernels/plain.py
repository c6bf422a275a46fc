"""RMSNorm, rotary embeddings and SwiGLU in plain torch: the reference of the fused kernels."""

from __future__ import annotations

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
