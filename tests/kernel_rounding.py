"""How far fused kernels may be from plain torch by rounding alone."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dopsd.models.kernels import operators
from dopsd.models.kernels.operators import rope_tables

SINGLE = 2.0**-24  # unit roundoff of float32


class Comparison:
    """The kernels at one shape and dtype; collects differences as shares of their bounds.

    Args:
        dtype: of the arguments.
        shape: B, T, D, heads, heads of keys.
        shares: where the differences go, by operator and dtype.
        kernels: a module with an implementation of each operator.
        device: where it computes; the operators that it is compared with compute on the CPU.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        shares: dict[str, float],
        kernels: ModuleType | SimpleNamespace,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dtype, self.shape, self.shares = dtype, shape, shares
        self.kernels, self.device = kernels, device
        self.ulp = torch.finfo(dtype).eps  # relative distance of neighbouring numbers
        self.generator = torch.Generator().manual_seed(sum(shape))

    def some(self, *shape: int, mean: float = 0.0) -> Tensor:
        return (torch.randn(*shape, generator=self.generator) + mean).to(self.dtype)

    def computed(self, name: str, *given: Any) -> Any:
        """What the kernels compute, on the CPU; the arguments where they overwrite these."""
        there = [x.to(self.device) if isinstance(x, Tensor) else x for x in given]
        results = getattr(self.kernels, name)(*there)
        if isinstance(results, Tensor):
            return results.cpu()
        return tuple(x.cpu() for x in results or there)

    def compare(self, name: str, ours: Tensor, theirs: Tensor, bound: Tensor | float) -> None:
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.abs().sum() > 0
        far = (ours.double() - theirs.double()).abs()
        share = torch.where(far == 0, 0.0, far / bound).max().item()
        name = f"{name} {str(self.dtype).removeprefix('torch.')}"
        self.shares[name] = max(share, self.shares.get(name, 0.0))

    def norms(self) -> None:
        """Reductions run in another order: D roundings of float32, then those of the dtype.

        liger rounds weight * gradient later than torch, by half an ulp of each summand.
        """
        b, t, d, *_ = self.shape
        x, residual, weight = self.some(b, t, d), self.some(b, t, d), self.some(d, mean=1.0)
        wide = self.ulp * (self.dtype != torch.float32)
        y, scale = operators.rms_norm(x, weight, 1e-5)
        noise = (d + 16) * SINGLE
        for name, ours, theirs in (
            ("rms_norm", (y, scale), self.computed("rms_norm", x, weight, 1e-5)),
            (
                "add_rms_norm",
                operators.add_rms_norm(x, residual, weight, 1e-5)[::2],
                self.computed("add_rms_norm", x, residual, weight, 1e-5)[::2],
            ),
        ):
            bound = (2 * wide + noise) * ours[0].double().abs()
            self.compare(name, ours[0], theirs[0], bound)
            self.compare(f"{name} scale", ours[1], theirs[1], noise * ours[1])
        total = self.computed("add_rms_norm", x, residual, weight, 1e-5)[1]
        self.compare("add_rms_norm sum", residual + x, total, 0.0)
        grad, other = self.some(b, t, d), self.some(b, t, d)
        m, r = (grad * weight).double(), scale[..., None].double()
        terms = r * m.abs() + x.double().abs() * r**3 * (m * x).abs().mean(-1, keepdim=True)
        for with_weight in (False, True):
            given = (x, weight, scale, with_weight)
            ours, theirs = (
                operators.rms_norm_backward(grad, *given),
                self.computed("rms_norm_backward", grad, *given),
            )
            bound = (wide / 2 + noise) * terms + wide * ours[0].double().abs()
            self.compare("rms_norm_backward", ours[0], theirs[0], bound)
            if with_weight:
                sums = (grad.double() * x * r).abs().sum((0, 1))
                bound = wide * ours[1].double().abs() + (noise + b * t * SINGLE + wide) * sums
                self.compare("rms_norm_backward weight", ours[1], theirs[1], bound)
            ours, theirs = (
                operators.add_rms_norm_backward(grad, other, *given),
                self.computed("add_rms_norm_backward", grad, other, *given),
            )
            bound = (wide + noise) * (terms + ours[0].double().abs() + other.double().abs())
            self.compare("add_rms_norm_backward", ours[0], theirs[0], bound)

    def rotary(self) -> None:
        """No reduction, and the same roundings: equal."""
        b, t, d, heads, kv_heads = self.shape
        q, k = self.some(b, t, heads, d // heads), self.some(b, t, kv_heads, d // heads)
        tables = rope_tables(t, d // heads, 500.0, q.device)
        strided = q.transpose(1, 2).contiguous().transpose(1, 2)
        for inverse in (False, True):
            ours = operators.rotary(q, k, *tables, inverse)
            for theirs in (self.computed("rotary", x, k, *tables, inverse) for x in (q, strided)):
                for pair in zip(ours, theirs, strict=True):
                    self.compare("rotary", *pair, bound=0.0)

    def swiglu(self) -> None:
        """exp of another library: 8 roundings of float32; torch rounds an inner product too."""
        b, t, d, *_ = self.shape
        gate, up, grad = (self.some(b, t, 3 * d) for _ in range(3))
        wide = self.ulp * (self.dtype != torch.float32)
        ours, theirs = operators.swiglu(gate, up), self.computed("swiglu", gate, up)
        bound = (2 * wide + 32 * SINGLE) * ours.double().abs()
        self.compare("swiglu", ours, theirs, bound)
        ours = gate.clone(), up.clone()
        operators.swiglu_backward_(grad, *ours)
        theirs = self.computed("swiglu_backward_", grad, gate.clone(), up.clone())[1:]
        for i, factor in enumerate((up, gate)):
            around = 32 * SINGLE * (grad * factor).double().abs()
            bound = (1.5 * wide + 32 * SINGLE) * ours[i].double().abs() + around
            self.compare("swiglu_backward_", ours[i], theirs[i], bound)
