"""The device of this process: one of the GPUs that it sees, or the CPU, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

from dopsd.core.progress import log

if TYPE_CHECKING:
    import torch

WORTH_THREADS = 20_000_000  # parameters from which a model gains from more than one thread
# of glibc's mallopt: sizes from which memory is taken from Linux, and is given back to it
MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 32 * 2**20), (-1, 2**30)


def keep_freed_memory() -> None:
    """Let the C library keep what tensors free for the next ones, instead of giving it to Linux.

    A forward pass on a CPU takes and frees the same megabytes in every layer. A page that comes
    from Linux costs a fault: with the embedded base, a quarter of all CPU time. Libraries without
    glibc's mallopt stay as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for setting in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            library.mallopt(*setting)


def choose_threads(parameters: int) -> None:
    """Let a small model compute with one thread on a CPU, unless OMP_NUM_THREADS says otherwise.

    Threads of a small model mostly wait for each other, and on a shared machine they spin
    (benchmarks/RESULTS.md).
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ and parameters < WORTH_THREADS:
        torch.set_num_threads(1)


def own_device() -> torch.device:
    """Return the GPU of this process, by LOCAL_RANK, or the CPU if there is no GPU.

    A scheduler may show each process only its own GPU: then LOCAL_RANK counts past what is visible.
    """
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def take_device() -> torch.device:
    """Make the device of this process the current one, and return it.

    NCCL and kernels in Triton run on the current device. Processes that seem to share a GPU are
    logged; training, which can compare GPUs over processes, refuses them.
    """
    import torch

    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        processes, visible = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if processes > visible:
            log(
                f"{processes} processes on this machine see {visible} GPUs each: unless the"
                " scheduler shows each of them its own, several share one. Start at most as many"
                " processes as GPUs"
            )
    return device
