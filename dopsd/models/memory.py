"""How much memory a piece of work takes at its peak, and how much is free: on an NVIDIA GPU, or in
Linux' main memory.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

CGROUP = Path("/sys/fs/cgroup")
PEAK_AGAIN = "5"  # written to clear_refs: the highest resident size counts from now


def is_measurable(device: torch.device) -> bool:
    return device.type == "cuda" or Path("/proc/self/clear_refs").exists()


def _trim() -> None:
    """Give back to Linux what was freed: what the allocator kept would hide how much the next piece
    of work takes.
    """
    gc.collect()
    with suppress(AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def peak(device: torch.device, work: Callable[[], Any]) -> int:
    """Bytes that this process holds at most while `work` runs, those that it held before
    included.
    """
    _trim()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    Path("/proc/self/clear_refs").write_text(PEAK_AGAIN)
    work()
    return _kilobytes("/proc/self/status", "VmHWM") * 1024


def held(device: torch.device) -> int:
    """Bytes that this process holds now."""
    _trim()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _kilobytes("/proc/self/status", "VmRSS") * 1024


def free(device: torch.device) -> int:
    """Bytes that this process could still take; of main memory its share among the processes
    started with it.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    available = min(_kilobytes("/proc/meminfo", "MemAvailable") * 1024, _container())
    return int(available) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _container() -> float:
    """Bytes that a container's limit leaves (cgroup v2)."""
    try:
        limit, used = (
            (CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
    except OSError:
        return math.inf
    return math.inf if limit == "max" else max(int(limit) - int(used), 0)


def _kilobytes(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
