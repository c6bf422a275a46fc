"""Where the host waits for the GPU, counted by the line of the checkout that makes it wait."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch

aten = torch.ops.aten

ROOT = Path(__file__).parents[2]
HERE = str(Path(__file__).parent)
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
INDEXING |= {aten._index_put_impl_.default, aten._unsafe_index.Tensor}
# the values decide the shape of the result
DATA_DEPENDENT = {aten.nonzero.default, aten.masked_select.default, aten.bincount.default}
DATA_DEPENDENT |= {aten._unique2.default, aten.unique_dim.default}
DATA_DEPENDENT |= {aten.unique_consecutive.default, aten.repeat_interleave.Tensor}
READS = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default}


class HostSyncs:
    """Counts of waits by (file:line, reason)."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, reason: str) -> None:
        self.counts[line_of_caller(), reason] += 1

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def by_line(self) -> dict[str, int]:
        """Return the counts, most first, as {"file:line reason": count}."""
        return {f"{line} {reason}": n for (line, reason), n in self.counts.most_common()}


def line_of_caller() -> str:
    """Return the innermost line of the package dopsd; without one, of any code but torch's."""
    frame, other = sys._getframe(1), None
    package = f"{ROOT}/dopsd/"
    while frame:
        name = frame.f_code.co_filename
        if name.startswith(package):
            return f"{name[len(str(ROOT)) + 1 :]}:{frame.f_lineno}"
        if other is None and not name.startswith(HERE) and "/torch/" not in name:
            other = f"{name.rpartition('site-packages/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return other or "torch"


def is_mask(value: object) -> bool:
    """Return whether an index is a mask, whose values decide the shape of the result."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def is_fill(func: object, args: tuple) -> bool:
    """Return whether index_put with a mask is one masked_fill, as torch then computes it."""
    if func is aten.index.Tensor:
        return False
    is_adding = len(args) > 3 and args[3]
    return not is_adding and args[2].numel() == 1 and sum(i is not None for i in args[1]) == 1
