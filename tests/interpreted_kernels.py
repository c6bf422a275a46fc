"""Run the Triton kernels on a CPU in Triton's interpreter, and compare them with plain torch.

    TRITON_INTERPRET=1 python tests/interpreted_kernels.py

Prints JSON: for each operator and dtype the largest difference as a share of what rounding allows.
The interpreter lacks four things that the kernels use; they are added here: numbers as arguments,
arithmetic in bfloat16 (rounded to the nearest, as on a GPU), libdevice's rsqrt, and in triton 3.6
loops up to a loaded number: numpy 2.5 makes no int of an array with one dimension.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import liger_kernel.ops.fused_add_rms_norm
import liger_kernel.ops.rms_norm
import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from dopsd.models.kernels import launch, operators
from dopsd.models.kernels.plain import rope_tables

SINGLE = 2.0**-24  # unit roundoff of float32
SHAPES = ((1, 7, 40, 4, 4), (3, 5, 64, 4, 1), (2, 13, 24, 2, 2))  # B, T, D, heads, kv heads


def widened(x: TensorHandle) -> TensorHandle:
    if x.dtype.scalar != tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def rounded(data: np.ndarray) -> TensorHandle:
    near = torch.from_numpy(np.array(data, np.float32)).bfloat16().view(torch.uint16).numpy()
    return TensorHandle(near, tl.bfloat16)


def complete_the_interpreter() -> None:
    of_numbers, binary = interpreter._implicit_cvt, InterpreterBuilder.binary_op
    cast, patch_tensor = InterpreterBuilder.cast_impl, interpreter._patch_lang_tensor

    def argument(value: Any) -> Any:
        if not isinstance(value, float):
            return of_numbers(value)
        return tl.tensor(TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)

    def computed(self: Any, left: TensorHandle, right: TensorHandle, op: Callable) -> TensorHandle:
        if left.dtype.scalar != tl.bfloat16:
            return binary(self, left, right, op)
        return rounded(op(widened(left).data, widened(right).data))

    def converted(self: Any, x: TensorHandle, dtype: tl.dtype) -> TensorHandle:
        return rounded(x.data) if dtype.scalar == tl.bfloat16 else cast(self, widened(x), dtype)

    def rsqrt(x: tl.tensor) -> tl.tensor:
        root = (1 / np.sqrt(x.handle.data)).astype(np.float32)
        return tl.tensor(TensorHandle(root, tl.float32), x.type)

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._implicit_cvt = argument
    interpreter._patch_lang_tensor = patched
    InterpreterBuilder.binary_op, InterpreterBuilder.cast_impl = computed, converted
    liger_kernel.ops.rms_norm.rsqrt = rsqrt
    liger_kernel.ops.fused_add_rms_norm.rsqrt = rsqrt


class Comparison:
    """The kernels at one shape and dtype; collects differences as shares of their bounds."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], shares: dict[str, float]):
        self.dtype, self.shape, self.shares = dtype, shape, shares
        self.ulp = torch.finfo(dtype).eps  # relative distance of neighbouring numbers
        self.generator = torch.Generator().manual_seed(sum(shape))

    def some(self, *shape: int, mean: float = 0.0) -> Tensor:
        return (torch.randn(*shape, generator=self.generator) + mean).to(self.dtype)

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
            ("rms_norm", (y, scale), launch.rms_norm(x, weight, 1e-5)),
            (
                "add_rms_norm",
                operators.add_rms_norm(x, residual, weight, 1e-5)[::2],
                launch.add_rms_norm(x, residual, weight, 1e-5)[::2],
            ),
        ):
            bound = (2 * wide + noise) * ours[0].double().abs()
            self.compare(name, ours[0], theirs[0], bound)
            self.compare(f"{name} scale", ours[1], theirs[1], noise * ours[1])
        total = launch.add_rms_norm(x, residual, weight, 1e-5)[1]
        self.compare("add_rms_norm sum", residual + x, total, 0.0)
        grad, other = self.some(b, t, d), self.some(b, t, d)
        m, r = (grad * weight).double(), scale[..., None].double()
        terms = r * m.abs() + x.double().abs() * r**3 * (m * x).abs().mean(-1, keepdim=True)
        for with_weight in (False, True):
            given = (x, weight, scale, with_weight)
            ours, theirs = (
                operators.rms_norm_backward(grad, *given),
                launch.rms_norm_backward(grad, *given),
            )
            bound = (wide / 2 + noise) * terms + wide * ours[0].double().abs()
            self.compare("rms_norm_backward", ours[0], theirs[0], bound)
            if with_weight:
                sums = (grad.double() * x * r).abs().sum((0, 1))
                bound = wide * ours[1].double().abs() + (noise + b * t * SINGLE + wide) * sums
                self.compare("rms_norm_backward weight", ours[1], theirs[1], bound)
            ours, theirs = (
                operators.add_rms_norm_backward(grad, other, *given),
                launch.add_rms_norm_backward(grad, other, *given),
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
            for theirs in (launch.rotary(x, k, *tables, inverse) for x in (q, strided)):
                for pair in zip(ours, theirs, strict=True):
                    self.compare("rotary", *pair, bound=0.0)

    def swiglu(self) -> None:
        """exp of another library: 8 roundings of float32; torch rounds an inner product too."""
        b, t, d, *_ = self.shape
        gate, up, grad = (self.some(b, t, 3 * d) for _ in range(3))
        wide = self.ulp * (self.dtype != torch.float32)
        ours, theirs = operators.swiglu(gate, up), launch.swiglu(gate, up)
        bound = (2 * wide + 16 * SINGLE) * ours.double().abs()
        self.compare("swiglu", ours, theirs, bound)
        ours, theirs = [gate.clone(), up.clone()], [gate.clone(), up.clone()]
        operators.swiglu_backward_(grad, *ours)
        launch.swiglu_backward_(grad, *theirs)
        for i, factor in enumerate((up, gate)):
            around = 16 * SINGLE * (grad * factor).double().abs()
            bound = (1.5 * wide + 16 * SINGLE) * ours[i].double().abs() + around
            self.compare("swiglu_backward_", ours[i], theirs[i], bound)


def main() -> None:
    complete_the_interpreter()
    shares: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            one = Comparison(dtype, shape, shares)
            one.norms()
            one.rotary()
            one.swiglu()
    sys.stdout.write(json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
