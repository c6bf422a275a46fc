"""The Triton kernels without a GPU: interpreted numerics, binaries, and bytes moved."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from torch import Tensor

from dopsd.models.kernels import fused, operators

WHY = "needs liger-kernel and triton, which have wheels for Linux alone"
triton = pytest.importorskip("triton", reason=WHY)
pytest.importorskip("liger_kernel", reason=WHY)

ROWS, LENGTH, WIDTH, INNER, HEADS = 2, 456, 4096, 12288, 32  # of LLaDA-8B, in an update of 2 states
WHOLE = re.compile(r"tt\.(load|store) (%\w+).*tensor<([\dx]+)x!tt\.ptr<[a-z]+(\d+)>>")
SINGLE = re.compile(r"tt\.(?:load|store) (%\w+).* !tt\.ptr<[a-z]+(\d+)>")
FROM = re.compile(r"(%\w+) = tt\.(?:addptr|splat|broadcast|expand_dims) (%\w+)")


@pytest.mark.full
def test_kernels_compute_what_plain_torch_does_but_for_rounding():
    script, env = ROOT / "tests/interpreted_kernels.py", os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    shares = json.loads(out.stdout)
    assert len(shares) == 2 * 11 and max(shares.values()) <= 1
    assert shares["rotary float32"] == shares["rotary bfloat16"] == 0


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel, as its caller asked for it."""

    kernel: Any  # a JITFunction
    grid: tuple[int, ...]
    given: dict[str, Any]

    def compiled(self, capability: int) -> Any:
        """Compile with the specialisations of a launch: ones, and sizes divisible by 16."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.runtime.jit import mangle_type

        kinds, fixed, divisible = {}, {}, {}
        for i, p in enumerate(self.kernel.params):
            value = self.given.get(p.name, p.default)
            if p.is_constexpr or value is None or (type(value) is int and value == 1):
                kinds[p.name], fixed[p.name] = "constexpr", value
                continue
            kinds[p.name] = mangle_type(value)
            if isinstance(value, Tensor) or (type(value) is int and value % 16 == 0):
                divisible[(i,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, kinds, fixed, divisible)
        options = {k: v for k, v in self.given.items() if k not in self.kernel.arg_names}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)

    def moved(self, code: str) -> dict[str, int]:
        """Return the bytes that each argument's loads and stores move in the whole launch."""
        sources, found, is_in_loop = {}, dict.fromkeys(self.given, 0), False
        programs, rows = torch.Size(self.grid).numel(), self.given.get("n_rows", 0)
        for line in code.splitlines():
            is_in_loop |= "scf.for" in line  # over the rows of a program, to the kernel's end
            if step := FROM.search(line):
                sources[step[1]] = sources.get(step[2], step[2])
            block, one = WHOLE.search(line), SINGLE.search(line)
            if not (block or one):
                continue
            pointer = block[2] if block else one[1]
            name = sources.get(pointer, pointer).lstrip("%")
            sizes = [int(n) for n in block[3].split("x")] if block else [1]
            lanes = min(torch.Size(sizes).numel(), self.given.get("n_cols", WIDTH))  # masked
            bits = int(block[4] if block else one[2])
            found[name] += lanes * bits // 8 * (rows if is_in_loop else programs)
        return found


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def calls() -> dict[str, tuple[Any, ...]]:
    """Arguments of each operator at LLaDA-8B's shape."""
    x, weight = made(ROWS, LENGTH, WIDTH), made(WIDTH)
    scale, wide = made(ROWS, LENGTH, dtype=torch.float32), made(ROWS, LENGTH, INNER)
    heads = made(ROWS, LENGTH, HEADS, WIDTH // HEADS)
    table = made(LENGTH, WIDTH // HEADS, dtype=torch.float32)
    return {
        "rms_norm": (x, weight, 1e-5),
        "add_rms_norm": (x, x, weight, 1e-5),
        "rms_norm_backward": (x, x, weight, scale, False),
        "add_rms_norm_backward": (x, x, x, weight, scale, False),
        "rotary": (heads, heads, table, table, False),
        "swiglu": (wide, wide),
        "swiglu_backward_": (wide, wide, wide),
    }


def charged(operator: Any, given: tuple[Any, ...]) -> tuple[int, int]:
    """Bytes of arguments and results, what is overwritten twice: of rows, and shared."""
    results = operator(*given)
    results = () if results is None else results if isinstance(results, tuple) else (results,)
    overwritten = [a.is_write for a in operator._opoverload._schema.arguments]
    tensors = [*results, *(x for x, twice in zip(given, overwritten, strict=True) if twice), *given]
    tensors = [x for x in tensors if isinstance(x, Tensor)]
    shared = sum(x.nbytes for x in tensors if x.shape[0] != ROWS)
    return sum(x.nbytes for x in tensors) - shared, shared


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(other, marks=pytest.mark.full) for other in (80, 100))]
)
@pytest.mark.parametrize("name", list(calls()))
def test_a_kernel_compiles_for_each_gpu_and_moves_the_bytes_that_it_is_charged(
    name: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    launches: list[Launch] = []

    def recorded(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
        given = dict(zip(kernel.arg_names, values, strict=False)) | named
        launches.append(Launch(kernel, grid, given))

    monkeypatch.setattr("triton.runtime.jit.JITFunction.run", recorded)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    family = "blackwell" if capability == 100 else "hopper"
    monkeypatch.setattr("liger_kernel.ops.swiglu.infer_device_arch", lambda: family)
    given = calls()[name]
    call: Callable[..., object] = getattr(fused, f"_{name}")
    call(*given)
    of_rows = of_shared = 0
    for one in launches:
        binary = one.compiled(capability)
        assert binary.asm["cubin"] and "local" not in binary.asm["ptx"]  # no registers spilled
        for argument, count in one.moved(binary.asm["ttir"]).items():
            is_shared = argument in ("W_ptr", "cos", "sin")
            of_shared += count * is_shared
            of_rows += count * (not is_shared)
    # what rows share is loaded by each program, from the cache; of the tables one half
    assert of_rows == charged(getattr(operators, name), given)[0]
    assert (of_shared > 0) == (charged(getattr(operators, name), given)[1] > 0)
