"""Forwards that processes make unequally often: a stop before each, and empty ones where all must
make them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dopsd.core.errors import StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class UnevenForwards:
    """Forwards that no other process has to make as well."""

    is_locked = False
    should_stop: Callable[[], bool] = staticmethod(lambda: False)  # asked before every forward

    def before_forward(self) -> None:
        """Before a forward. Raises StopRequested instead of letting it begin where this process
        must stop.
        """
        if self.should_stop():
            raise StopRequested(is_agreed=False)

    def join(self) -> None:
        """Before anything else that all processes do together: take part in the others' forwards
        until none is left.
        """


class LockstepForwards(UnevenForwards):
    """Forwards of a base in parts: whoever has none of its own makes an empty one."""

    is_locked = True

    def __init__(self, trunk: nn.Module, device: torch.device) -> None:
        self.trunk, self.device = trunk, device

    def before_forward(self) -> None:
        self._working(1)

    def join(self) -> None:
        while self._working(0):
            with torch.no_grad():
                self.trunk(torch.zeros((1, 1), dtype=torch.long, device=self.device))

    def _working(self, forward_count: int) -> int:
        """How many processes are about to make a forward of their own; all of them stop if one
        must.
        """
        counts = torch.tensor([forward_count, self.should_stop()], device=self.device)
        dist.all_reduce(counts)
        working, stopping = map(int, counts.tolist())
        if stopping:
            raise StopRequested(is_agreed=True)
        return working
