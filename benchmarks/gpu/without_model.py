"""Parts that need no model: the machine and its two rates, fused kernels, attention."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shutil import which

import torch
from kit import LENGTH, Kit, Results
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from dopsd.models.kernels.operators import Kernels, rope_tables

PACKAGES = ("torch", "triton", "transformers", "peft", "liger-kernel", "numpy", "flash-attn")
QUERY = "name,driver_version,memory.total,memory.used,clocks.sm,power.draw,temperature.gpu"
STATES, WIDTH, HEADS, INNER = 14, 4096, 32, 12288  # an update of LLaDA-8B
BACKENDS = {
    "chosen by torch": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "plain": SDPBackend.MATH,
}


def machine(kit: Kit) -> Results:
    """Name the card and the packages, and measure a matrix product and a copy."""
    commit = _output("git", "rev-parse", "--short", "HEAD")
    yield (
        "machine",
        {
            "gpu": torch.cuda.get_device_name() if kit.timer.is_gpu else "none: a rehearsal",
            "nvidia_smi": _output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"),
            "python": sys.version.split()[0],
            "packages": {name: found for name in PACKAGES if (found := _version(name))},
            "cpus": os.cpu_count(),
            "c_compiler": which("gcc") or which("clang"),
            "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
            "commit": commit or "no git here",
            "kernels": kit.kernels,
            "layers": kit.layers,
        },
    )
    size, copied = (256, 2**20) if kit.is_toy else (8192, 2**30)
    a, b = (torch.randn(size, size, device=kit.device, dtype=torch.bfloat16) for _ in range(2))
    ms = kit.timer.short_ms(lambda: a @ b)
    kit.product = 2 * size**3 / ms * 1e3
    yield f"matrix product of {size}, bfloat16", {"ms": ms, "tflops": kit.product / 1e12}
    source, target = (torch.randn(copied // 4, device=kit.device) for _ in range(2))
    ms = kit.timer.short_ms(lambda: target.copy_(source))
    name = f"copy of {copied // 2**20} MiB, bytes read and written"
    yield name, {"ms": ms, "tb_per_second": 2 * copied / ms / 1e9}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    if which(command[0]) is None:
        return None
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def kernels(kit: Kit) -> Results:
    """Time each fused kernel against plain torch at the size of an update of 14 states.

    `floor_us` is the time of the forward pass's bytes at 3 TB/s.
    """
    chosen = {"plain": Kernels()}
    if find_spec("liger_kernel") and kit.timer.is_gpu:
        from dopsd.models.kernels.fused import FusedKernels

        chosen["fused"] = FusedKernels()
    for name, (work, inputs, moved) in _kernel_works(kit).items():
        found: dict[str, float] = {}
        for label, kernel in chosen.items():
            with torch.no_grad():
                found[f"{label}_us"] = 1e3 * kit.timer.short_ms(partial(work, kernel, False))
            both = partial(_forward_and_backward, partial(work, kernel, True), inputs)
            found[f"{label}_with_backward_us"] = 1e3 * kit.timer.short_ms(both)
        if "fused" in chosen:
            found["ratio"] = found["plain_us"] / found["fused_us"]
            found["ratio_with_backward"] = (
                found["plain_with_backward_us"] / found["fused_with_backward_us"]
            )
        yield f"kernel {name}", found | {"floor_us": moved / 3e12 * 1e6}


def _kernel_works(
    kit: Kit,
) -> dict[str, tuple[Callable[[Kernels, bool], tuple[Tensor, ...]], tuple[Tensor, ...], int]]:
    """Return for each kernel what it computes, its inputs, and the bytes of its forward pass."""
    b, t, d, h, i = (2, 32, 128, 4, 384) if kit.is_toy else (STATES, LENGTH, WIDTH, HEADS, INNER)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, device=kit.device, dtype=torch.bfloat16).requires_grad_()

    x, residual, gate, up = some(b, t, d), some(b, t, d), some(b, t, i), some(b, t, i)
    weight = torch.ones(d, device=kit.device, dtype=torch.bfloat16)
    q, k = (some(b, t, h, d // h) for _ in range(2))
    tables = rope_tables(t, d // h, 1e4, kit.device)
    heads = (q.transpose(1, 2), k.transpose(1, 2))

    def swiglu(kernel: Kernels, is_trained: bool) -> tuple[Tensor, ...]:
        """With a backward pass it gets copies, which that pass overwrites."""
        given = (gate * 1, up * 1) if is_trained else (gate, up)
        return (kernel.swiglu(*given),)

    return {
        "norm": (lambda kernel, _: (kernel.norm(x, weight, 1e-5),), (x,), 4 * b * t * d),
        "sum and norm": (
            lambda kernel, _: kernel.add_norm(x, residual, weight, 1e-5),
            (x, residual),
            8 * b * t * d,
        ),
        "rotary": (lambda kernel, _: kernel.rotate(*heads, *tables), (q, k), 8 * b * t * d),
        "swiglu": (swiglu, (gate, up), 6 * b * t * i),
    }


def _forward_and_backward(
    work: Callable[[], tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
) -> None:
    outs = work()
    torch.autograd.grad(outs, inputs, [torch.ones_like(out) for out in outs])


def attention(kit: Kit) -> Results:
    """Time each kernel of attention at 16 rows of LLaDA-8B, without a mask and with padding's."""
    b, h, t, w = (2, 2, 32, 16) if kit.is_toy else (16, HEADS, LENGTH, WIDTH // HEADS)
    q, k, v = (
        torch.randn(b, h, t, w, device=kit.device, dtype=torch.bfloat16).requires_grad_()
        for _ in range(3)
    )
    padded = torch.ones(b, 1, 1, t, dtype=torch.bool, device=kit.device)
    padded[::2, ..., : t // 8] = False
    flops = 4 * b * h * t * t * w
    for masked, mask in (("no mask", None), ("padding masked", padded)):
        for name, backend in BACKENDS.items():
            work = partial(_attend, q, k, v, mask, backend)
            both = partial(_forward_and_backward, lambda work=work: (work(),), (q, k, v))
            found: dict[str, object] = {}
            try:  # a kernel that takes no such input, or has no such backward pass, says so
                with torch.no_grad():
                    ms = kit.timer.short_ms(work)
                found = {"ms": ms, "tflops": flops / ms / 1e9}
                found["both_ms"] = kit.timer.short_ms(both)
                if backend is None:
                    found["kernels"] = [name for name, *_ in kit.timer.kernels(both)["top"][:4]]
            except RuntimeError as error:
                found["refused"] = str(error).splitlines()[0][:120]
            yield f"attention, {masked}, {name}", found


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, backend: object) -> Tensor:
    if backend is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def all_reduce(kit: Kit) -> Results:
    """Sum gradients over two GPUs with NCCL, if there are two."""
    count = torch.cuda.device_count() if kit.timer.is_gpu else 0
    if count < 2:
        yield "sum over two GPUs", {"left_out": f"this machine shows {count}"}
        return
    summed = 2**28
    values = [torch.ones(summed // 4, device=f"cuda:{i}") for i in range(2)]
    ms = kit.timer.ms(lambda: torch.cuda.nccl.all_reduce(values))
    yield "sum of 256 MiB over two GPUs", {"ms": ms, "gb_per_second": summed / ms / 1e6}
