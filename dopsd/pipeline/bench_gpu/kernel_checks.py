"""Whether the fused kernels compute what plain torch does on the same GPU, in bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dopsd.models.kernels.plain import Kernels, rope_tables
from dopsd.pipeline.bench_gpu.checks import Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

ROWS, TOKENS, WIDTH, HEADS, INNER = 2, 19, 4096, 32, 12288
BOUND = 2**-6  # of the largest entry: two roundings to bfloat16 and their sum
EPS = 1e-5


def fused(device: torch.device) -> Found:
    """Compare each kernel's results and gradients with plain torch's; return the worst.

    Raises:
        ModuleNotFoundError: if liger-kernel is not installed.
    """
    from dopsd.models.kernels.fused import FusedKernels

    worst = max(
        _gap(result, expected)
        for name in WORKS
        for result, expected in zip(
            _results(name, FusedKernels(), device), _results(name, Kernels(), device), strict=True
        )
    )
    return Found(worst, BOUND, "the largest entry")


def _norms(kernels: Kernels, some: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    x, weight = some(ROWS, TOKENS, WIDTH), some(WIDTH).detach()
    return sum(kernels.norm_beside(x, weight, EPS)), kernels.norm(x, weight, EPS)  # type: ignore[return-value]


def _sums(kernels: Kernels, some: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    x, residual, weight = (some(*shape) for shape in ((ROWS, TOKENS, WIDTH),) * 2 + ((WIDTH,),))
    return kernels.add_norm(x, residual, weight.detach(), EPS)


def _rotary(kernels: Kernels, some: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    q, k = (some(ROWS, HEADS, TOKENS, WIDTH // HEADS) for _ in range(2))
    return kernels.rotate(q, k, *rope_tables(TOKENS, WIDTH // HEADS, 1e4, q.device))


def _swiglu(kernels: Kernels, some: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    return (kernels.swiglu(some(ROWS, TOKENS, INNER), some(ROWS, TOKENS, INNER)),)


WORKS: dict[str, Callable[[Kernels, Callable[..., Tensor]], tuple[Tensor, ...]]] = {
    "norm": _norms,
    "sum and norm": _sums,
    "rotary": _rotary,
    "swiglu": _swiglu,
}


def _results(name: str, kernels: Kernels, device: torch.device) -> list[Tensor]:
    """Return what a kernel computes, and the gradients of what it was given."""
    generator, given = torch.Generator().manual_seed(0), []

    def some(*shape: int) -> Tensor:
        value = torch.randn(shape, generator=generator).to(device, torch.bfloat16)
        given.append(value.requires_grad_())
        return given[-1]

    outputs = WORKS[name](kernels, some)
    kept = [out.detach().clone() for out in outputs]  # SwiGLU's backward pass overwrites
    sum(out.float().square().sum() for out in outputs).backward()  # type: ignore[union-attr]
    return kept + [value.grad for value in given if value.grad is not None]


def _gap(result: Tensor, expected: Tensor) -> float:
    difference = (result.float() - expected.float()).abs().max()
    return (difference / expected.float().abs().max()).item()
