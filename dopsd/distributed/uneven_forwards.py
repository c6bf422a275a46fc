"""Uneven inputs: processes that make unequal numbers of forwards (compare torch's `Join`).

Before each forward a process may stop. Where the base is sharded, processes without a forward of
their own make empty ones, and a process that runs out of memory within a pass still takes part in
the rest of its exchanges.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

CAN_RECOVER = hasattr(FSDPModule, "reset_iter_state")  # from torch 2.13 on


class UnevenForwards:
    """Forwards of an unsharded base, which no other process has to join.

    Attributes:
        is_locked: whether all processes must make every forward together.
        should_stop: asked before every forward.
        knows_pass: whether `end_pass` can make the rest of a pass that ran out of memory.
    """

    is_locked = False
    knows_pass = True
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

    def begin_pass(self) -> None:
        """Begin a forward and backward pass."""

    def end_pass(self, is_whole: bool) -> None:
        """End a pass.

        Args:
            is_whole: False if memory ran out; the error must have left its `except` block, because
                it holds the memory of the pass.
        """


class LockstepForwards(UnevenForwards):
    """Forwards of a sharded base: a process without a forward of its own makes an empty one."""

    is_locked = True

    def __init__(
        self,
        trunk: Any,  # noqa: ANN401  # FSDP2 adds methods to modules
        blocks: Sequence[Any],
        device: torch.device,
    ) -> None:
        """Record the exchanges of every pass.

        Args:
            trunk: the sharded model.
            blocks: its parts, whose weights are gathered one after the other.
            device: where it computes.
        """
        self.trunk, self.device, self.knows_pass = trunk, device, False
        # exchanges of the current pass and of the last whole one: blocks gathered, None: a count
        self.exchanges: list[Any] = []
        self.whole_pass: list[Any] = []
        for block in blocks if CAN_RECOVER else ():
            block.set_custom_all_gather(Recorded(partial(self.exchanges.append, block)))

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

    def begin_pass(self) -> None:
        """Forget what earlier passes left behind, so that every pass makes the same exchanges."""
        if CAN_RECOVER and any(block is not None for block in self.exchanges):
            self.trunk.reset_iter_state()  # FSDP2 refuses it before its first forward
        self.exchanges.clear()

    def end_pass(self, is_whole: bool) -> None:
        """Remember the exchanges of a whole pass, or make those that this pass still lacks.

        All passes make the same exchanges in the same order, on all processes.

        Raises:
            DopsdError: if this torch cannot do so.
        """
        if is_whole:
            self.whole_pass, self.knows_pass = [*self.exchanges], True
            return
        if not CAN_RECOVER:
            raise DopsdError(
                "train: out of memory with launch.shard; lower train.micro_batch_states, or install"
                " torch 2.13, with which all processes continue with half",
                exit_code=1,
                code=Code.OUT_OF_MEMORY,
            )
        self.trunk.reset_iter_state()
        for block in self.whole_pass[len(self.exchanges) :]:
            if block is None:
                self._working(1)
            else:
                block.unshard()
                block.reshard()

    def _working(self, forward_count: int) -> int:
        """Return how many processes are about to make a forward of their own.

        If one of them must stop, all raise StopRequested.
        """
        self.exchanges.append(None)
        counts = torch.tensor([forward_count, self.should_stop()], device=self.device)
        dist.all_reduce(counts)
        working, stopping = map(int, counts.tolist())
        if stopping:
            raise StopRequested(is_agreed=True)
        return working


class Recorded:
    """An all-gather of a block's weights, as FSDP2 makes it, that says when it was made."""

    def __init__(self, note: Callable[[], None]) -> None:
        self.note = note

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the gathered weights."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        async_op: bool = False,
    ) -> Work | None:
        """Gather, then note it."""
        work: Work | None = dist.all_gather_single(
            output_tensor, input_tensor, group=group, async_op=async_op
        )
        self.note()
        return work
