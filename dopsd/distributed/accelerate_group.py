"""The processes of one training run, through accelerate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, StopRequested
from dopsd.core.metrics import MetricSums

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelerate import Accelerator

    from dopsd.distributed.uneven_forwards import UnevenForwards


def all_processes() -> Accelerator:
    """Return the accelerator of all processes that torchrun started.

    Without `cpu=True`, accelerate ignores the other processes on a machine without a GPU.

    Raises:
        DopsdError: if accelerate sees another number of processes.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != world_size:
        raise DopsdError(
            f"train: {world_size} processes were started, but accelerate sees"
            f" {accelerator.num_processes}; start them with torchrun",
            code=Code.PROCESSES,
        )
    return accelerator


def by_first(accelerator: Accelerator, work: Callable[[], None]) -> None:
    """Run `work` in the first process only, while the others wait.

    Args:
        accelerator: the processes of the run.
        work: the function to run.

    Raises:
        DopsdError: in the first process, if `work` raised it.
        SystemExit: in the others, with the same exit code.
    """
    errors: list[DopsdError | None] = [None]
    if accelerator.is_main_process:
        try:
            work()
        except DopsdError as error:
            errors = [error]
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(errors)
    if errors[0]:
        raise errors[0] if accelerator.is_main_process else SystemExit(errors[0].exit_code)


def over_ranks(accelerator: Accelerator, metrics: MetricSums) -> MetricSums:
    """Return the metrics of all processes, added up."""
    if accelerator.num_processes == 1:
        return metrics
    from accelerate.utils import gather_object

    total = MetricSums()
    for rank_sums in gather_object([dict(metrics)]):
        total.merge(rank_sums)
    return total


class AccelerateGroup:
    """A ProcessGroup of the processes of a training run, through accelerate."""

    def __init__(self, accelerator: Accelerator, forwards: UnevenForwards) -> None:
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self.forwards = forwards

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        """Return the lists of all processes as one, in order of rank.

        Args:
            items: the list of this process.
            is_done: whether this process has finished its part; a stop then waits until the part is
                kept.

        Raises:
            StopRequested: in all processes, if one of them must stop, or stopped before its part
                was done.
        """
        if self.size > 1:
            self.forwards.join()
        gathered = self._exchange(not is_done and self.forwards.should_stop(), items)
        if any(is_stopping for is_stopping, _ in gathered):
            raise StopRequested(is_agreed=True)
        return [item for _, rank_items in gathered for item in rank_items]

    def announce_stop(self) -> None:
        """Answer the next `all_gather_object` of the other processes with a stop.

        A process calls it when it leaves its collect or its gradients early.
        """
        self._exchange(True, [])

    def _exchange(self, is_stopping: bool, items: list[Any]) -> list[tuple[bool, list[Any]]]:
        if self.size == 1:
            return [(is_stopping, items)]
        from accelerate.utils import gather_object

        gathered: list[tuple[bool, list[Any]]] = gather_object([(is_stopping, items)])
        return gathered
