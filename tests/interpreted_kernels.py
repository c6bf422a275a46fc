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
from types import SimpleNamespace
from typing import Any

import liger_kernel.ops.fused_add_rms_norm
import liger_kernel.ops.rms_norm
import numpy as np
import torch
import triton.language as tl
from kernel_rounding import Comparison
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from dopsd.models.kernels import fused

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


def main() -> None:
    complete_the_interpreter()
    private = {name[1:]: value for name, value in vars(fused).items() if name.startswith("_")}
    kernels = SimpleNamespace(**private)  # an operator's kernel has its name after an underscore
    shares: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            one = Comparison(dtype, shape, shares, kernels)
            one.norms()
            one.rotary()
            one.swiglu()
    sys.stdout.write(json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
