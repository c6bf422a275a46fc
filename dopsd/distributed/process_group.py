"""Process groups: what the processes of a run ask of each other."""

from __future__ import annotations

from typing import Any, Protocol


class ProcessGroup(Protocol):
    """The processes that hold the same weights: what one of them is to sample, any other can."""

    rank: int
    size: int

    def all_gather_object(
        self, items: list[Any], is_done: bool = False
    ) -> list[Any]: ...  # of all, in order of rank; all must call


class SingleProcess:
    """A group of one process."""

    rank, size = 0, 1

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        return items
