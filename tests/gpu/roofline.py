"""Modelled time on a GPU: each kernel takes its FLOPs or its bytes, whichever takes longer.

The shares of the peaks are assumptions (docs/pretended-gpu.md).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from gpu.kinds import Kind, kind_of
from gpu.tensor import tensors


@dataclass(frozen=True)
class Card:
    """Peaks from the maker's data sheet."""

    tensor_flops: float  # dense bfloat16, FLOP/s
    vector_flops: float  # float32 outside the tensor cores, FLOP/s
    bandwidth: float  # bytes/s


CARDS = {
    "h100": Card(989e12, 67e12, 3.35e12),
    "h200": Card(989e12, 67e12, 4.8e12),
}
MATMUL, ATTENTION, VECTOR, BANDWIDTH = 0.70, 0.55, 0.5, 0.85  # shares of the peaks
LAUNCH = 4e-6  # seconds; the least time of a kernel
SORT_PASSES = 4
FUSED_FLOPS = 32  # vector operations of a fused kernel for each entry that it writes


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; an expanded dimension is read once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(n for n, stride in pairs if stride or not n) * tensor.element_size()


def matmul_flops(func: Any, args: tuple) -> int:
    """Return 2 x rows x inner x columns, for each matrix of a batch."""
    first = 1 if func._overloadpacket.__name__.startswith(("addmm", "baddbmm")) else 0
    left, right = args[first], args[first + 1]
    return 2 * left.numel() * right.shape[-1]


def attention_flops(args: tuple, products: int) -> int:
    """Return the operations of `products` products of all queries with all keys."""
    query, key = args[0], args[1]
    return 2 * products * query.numel() * key.shape[-2]


class Model:
    """FLOPs, bytes, launches and modelled seconds of the kernels so far, by kind of work.

    Attributes:
        recomputed: FLOPs of forwards that gradient checkpointing repeats.
    """

    def __init__(self) -> None:
        self.flops: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.times = {name: Counter[str]() for name in CARDS}
        self.limits: Counter[str] = Counter()  # seconds on an H100 by what limits the kernels
        self.recomputed = 0

    @property
    def seconds(self) -> float:
        """Modelled seconds on an H100."""
        return sum(self.times["h100"].values())

    @property
    def useful_flops(self) -> int:
        """FLOPs of tensor cores without those of recomputation."""
        return sum(n for kind, n in self.flops.items() if kind != "vector") - self.recomputed

    def utilisation(self, card: str = "h100") -> float:
        """Return the share of a card's peak that useful FLOPs reach."""
        seconds = sum(self.times[card].values())
        return self.useful_flops / seconds / CARDS[card].tensor_flops if seconds else 0.0

    def charge(self, func: Any, args: tuple, kwargs: dict, outputs: list[torch.Tensor]) -> None:
        """Add one operator.

        Raises:
            NotImplementedError: if nobody has said what it costs.
        """
        kind = kind_of(func)
        if kind is Kind.FREE:
            return
        inputs = tensors([*args, *kwargs.values()])
        moved = _bytes_moved(kind, inputs, outputs)
        flops, name = _flops(kind, func, args, outputs)
        label = name or func._overloadpacket.__name__
        self.flops[name or "vector"] += flops
        self.bytes[label] += moved
        self.launches[label] += 1
        if name and _is_recomputing():
            self.recomputed += flops
        for card_name, card in CARDS.items():
            seconds = _seconds(card, kind, flops, moved)
            self.times[card_name][label] += max(seconds.values())
        slowest = _seconds(CARDS["h100"], kind, flops, moved)
        limit = max(slowest, key=slowest.__getitem__)
        self.limits[limit] += slowest[limit]


def _is_recomputing() -> bool:
    """Return whether a forward runs inside a backward pass."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def _bytes_moved(kind: Kind, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    if kind is Kind.GATHER:
        return 2 * sum(map(distinct_bytes, outputs)) + sum(map(distinct_bytes, inputs[1:]))
    if kind is Kind.SCATTER:
        values = sum(map(distinct_bytes, inputs[1:]))
        is_copying = not any(inputs[0] is out for out in outputs)
        return 2 * values + is_copying * 2 * sum(map(distinct_bytes, outputs))
    if kind is Kind.FILL:
        written = {id(out) for out in outputs}
        inputs = [tensor for tensor in inputs if id(tensor) not in written]
    passes = SORT_PASSES if kind is Kind.SORT else 1
    return passes * sum(map(distinct_bytes, inputs)) + sum(map(distinct_bytes, outputs))


def _flops(kind: Kind, func: Any, args: tuple, outputs: list[torch.Tensor]) -> tuple[int, str]:
    """Return FLOPs, and the name of the tensor cores' work; "" for vector work."""
    if kind is Kind.MATMUL:
        return matmul_flops(func, args), "matmul"
    if kind is Kind.ATTENTION:
        return attention_flops(args, 2), "attention"
    if kind is Kind.ATTENTION_BACKWARD:  # the gradient comes first; scores are computed again
        return attention_flops(args[1:], 5), "attention"
    if kind is Kind.FUSED:
        return FUSED_FLOPS * sum(out.numel() for out in outputs), ""
    return 0, ""


def _seconds(card: Card, kind: Kind, flops: int, moved: int) -> dict[str, float]:
    """Return the seconds that each limit allows; the longest counts."""
    rates = {
        Kind.MATMUL: card.tensor_flops * MATMUL,
        Kind.ATTENTION: card.tensor_flops * ATTENTION,
        Kind.ATTENTION_BACKWARD: card.tensor_flops * ATTENTION,
    }
    rate = rates.get(kind, card.vector_flops * VECTOR)
    return {
        "peak": flops / rate,
        "bandwidth": moved / (card.bandwidth * BANDWIDTH),
        "launch": LAUNCH,
    }
