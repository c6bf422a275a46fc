"""Process groups: how the processes of a run meet, share work and stop, through accelerate.

Compare torch's `Join` for unequal forwards: before each forward a process may stop. Where the base
is sharded, processes without a forward of their own make empty ones.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from dopsd.core.environment import refuse_leftovers
from dopsd.core.errors import TEMPORARY, Code, DopsdError, StopRequested
from dopsd.core.metrics import MetricSums
from dopsd.distributed.config import LaunchConfig
from dopsd.distributed.nodes import is_in_use

if TYPE_CHECKING:
    from accelerate import Accelerator

SOON = 30.0  # seconds in which the processes of a launcher meet
T = TypeVar("T")


class ProcessGroup(Protocol):
    """Processes that hold the same weights, so that any of them can sample for another."""

    rank: int  # number of this process, from 0
    size: int  # number of processes

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


def all_processes(timeout: int = LaunchConfig().timeout) -> Accelerator:
    """Return the accelerator of all processes that torchrun started.

    Without `cpu=True`, accelerate ignores the other processes on a machine without a GPU.

    Args:
        timeout: launch.timeout, seconds to wait for another process.
    """
    refuse_leftovers()  # before accelerate, which reads variables as it loads
    from accelerate import Accelerator, InitProcessGroupKwargs

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=timeout))
    with _telling(world_size - 1, timeout):
        accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[waiting])
    if accelerator.num_processes != world_size:
        raise Code.PROCESSES.error(
            f"train: {world_size} processes were started, but accelerate sees"
            f" {accelerator.num_processes}; start them with torchrun"
        )
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        properties = torch.cuda.get_device_properties(accelerator.device)
        refuse_shared_gpu(str(properties.uuid), accelerator)
    return accelerator


@contextmanager
def _telling(others: int, timeout: int) -> Iterator[None]:
    """Say for what this process waits, if the others do not come soon."""
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    line = (
        f"train: waiting for {others} other {'process' if others == 1 else 'processes'} at {place}"
    )
    timer = threading.Timer(
        SOON, sys.stderr.write, [f"{line} (WORLD_SIZE), for {timeout} s at most\n"]
    )
    timer.daemon = True
    if others:
        timer.start()
    try:
        yield
    except dist.DistError as error:
        line = (
            f"{others + 1} processes (WORLD_SIZE) did not meet at {place} within {timeout} s"
            " (launch.timeout); start all of them, or unset WORLD_SIZE"
        )
        if is_in_use(error):
            line = f"{place} is in use by another program; name a free port (MASTER_PORT)"
        raise Code.PROCESSES.error(f"train: {line}", TEMPORARY) from error
    finally:
        timer.cancel()


def refuse_shared_gpu(gpu: str, accelerator: Accelerator) -> None:
    """Refuse two processes on one GPU.

    NCCL would only fail at its first operation, so they compare through the store where they met.
    """
    store = dist.distributed_c10d._get_default_store()
    store.set(f"dopsd/gpu/{accelerator.process_index}", gpu)
    gpus = [store.get(f"dopsd/gpu/{rank}").decode() for rank in range(accelerator.num_processes)]
    if shared := [rank for rank, other in enumerate(gpus) if gpus.count(other) > 1]:
        raise Code.PROCESSES.error(
            f"train: processes {', '.join(map(str, shared))} share a GPU ({gpus[shared[0]]}); start"
            " at most as many processes as GPUs, or show each process its own"
            " (CUDA_VISIBLE_DEVICES)"
        )


def by_first(accelerator: Accelerator, work: Callable[[], None]) -> None:
    """Run `work` in the first process only, while the others wait.

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
    total = MetricSums()
    for rank_sums in of_all_ranks(accelerator, dict(metrics)):
        total.merge(rank_sums)
    return total


def of_all_ranks(accelerator: Accelerator, value: T) -> list[T]:
    """Return the values of all processes, in order of rank."""
    if accelerator.num_processes == 1:
        return [value]
    from accelerate.utils import gather_object

    values: list[T] = gather_object([value])
    return values


class AccelerateGroup:
    """A ProcessGroup of the processes of a training run, through accelerate."""

    def __init__(self, accelerator: Accelerator, forwards: UnevenForwards) -> None:
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self.forwards = forwards

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        """Return the lists of all processes as one, in order of rank.

        Args:
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


GLOO = ("gloo/", "pair closure")  # in messages of gloo, whose errors have no class of their own


def is_lost(error: RuntimeError) -> bool:
    """Return whether another process ended, or did not answer within launch.timeout."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in GLOO)


def lost(scratch: Path, error: RuntimeError) -> DopsdError:
    """Return the error that ends a run whose other processes no longer answer."""
    words = " ".join(str(error).rpartition("] ")[2].split())
    return Code.PROCESS_LOST.error(
        f"train: another process of the run ended or does not answer ({words[:70]}); the"
        f" same command continues from the last checkpoint in {scratch}. launch.timeout says how"
        " long to wait for an answer",
        TEMPORARY,
    )
