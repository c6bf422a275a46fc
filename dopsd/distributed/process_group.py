"""Process groups: how the processes of a run share work, also where they make unequal forwards.

Compare torch's `Join`. Before each forward a process may stop. Where the base is sharded, processes
without a forward of their own make empty ones.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dopsd.core.errors import StopRequested


class ProcessGroup(Protocol):
    """Processes that hold the same weights, so that any of them can sample for another.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        """Return the lists of all processes as one, in order of rank; all processes must call.

        Args:
            is_done: whether this process has finished its part; a stop then waits until the part is
                kept.
        """


class SingleProcess:
    """A ProcessGroup of one process."""

    rank, size = 0, 1

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        """Return `items`."""
        return items


class UnevenForwards:
    """Forwards of an unsharded base, which no other process has to join.

    Attributes:
        needs_lockstep: whether all processes must make every forward together.
        should_stop: asked before every forward.
    """

    needs_lockstep = False
    should_stop: Callable[[], bool] = staticmethod(lambda: False)

    def before_forward(self) -> None:
        """Prepare for a forward of this process.

        Raises:
            StopRequested: if this process must stop.
        """
        if self.should_stop():
            raise StopRequested(is_agreed=False)

    def join(self) -> None:
        """Take part in the forwards of the other processes until none is left.

        Processes call it before any other collective operation.
        """


class LockstepForwards(UnevenForwards):
    """Forwards of a sharded base: a process without a forward of its own makes an empty one."""

    needs_lockstep = True

    def __init__(self, trunk: Any, device: torch.device) -> None:  # noqa: ANN401  # of FSDP2
        """Prepare for the forwards."""
        self.trunk, self.device = trunk, device

    def before_forward(self) -> None:
        """Wait until all processes are about to make a forward.

        Raises:
            StopRequested: in all processes, if one of them must stop.
        """
        self._working(1)

    def join(self) -> None:
        """Make empty forwards until no process has one of its own left."""
        while self._working(0):
            with torch.no_grad():
                self.trunk(torch.zeros((1, 1), dtype=torch.long, device=self.device))

    def _working(self, forward_count: int) -> int:
        """Return how many processes are about to make a forward of their own.

        If one of them must stop, all raise StopRequested.
        """
        counts = torch.tensor([forward_count, self.should_stop()], device=self.device)
        dist.all_reduce(counts)
        working, stopping = map(int, counts.tolist())
        if stopping:
            raise StopRequested(is_agreed=True)
        return working
