"""Process groups: how the processes of a run share work."""

from __future__ import annotations

from typing import Any, Protocol


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
            items: the list of this process.
            is_done: whether this process has finished its part; a stop then waits until the part is
                kept.
        """


class SingleProcess:
    """A ProcessGroup of one process."""

    rank, size = 0, 1

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        """Return `items`."""
        return items
