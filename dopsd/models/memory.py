"""Measure peak and free memory: of an NVIDIA GPU, or of Linux' main memory."""

import ctypes
import gc
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

CGROUP = Path("/sys/fs/cgroup")
PEAK_AGAIN = "5"  # written to clear_refs: resets the peak of the resident size


def is_measurable(device: torch.device) -> bool:
    """Return whether memory on this device can be measured."""
    return device.type == "cuda" or Path("/proc/self/clear_refs").exists()


def _trim() -> None:
    """Return freed memory to Linux: what the allocator keeps would hide the next peak."""
    gc.collect()
    with suppress(AttributeError):  # C libraries other than GNU's have no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def peak(device: torch.device, work: Callable[[], Any]) -> int:
    """Return the most bytes that this process holds while `work` runs.

    Bytes that the process held before are included.
    """
    _trim()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    Path("/proc/self/clear_refs").write_text(PEAK_AGAIN, encoding="utf-8")
    work()
    return _kilobytes("/proc/self/status", "VmHWM") * 1024


def held(device: torch.device) -> int:
    """Return the bytes that this process holds now."""
    _trim()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _kilobytes("/proc/self/status", "VmRSS") * 1024


def free(device: torch.device) -> int:
    """Return the bytes that this process can still allocate.

    Of main memory that is its share among the processes that were started together.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    available = min(_kilobytes("/proc/meminfo", "MemAvailable") * 1024, _container())
    return int(available) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _container() -> float:
    """Return the bytes that the container's limit leaves (cgroup v2); infinity without a limit."""
    try:
        limit, used = (
            (CGROUP / name).read_text(encoding="utf-8").strip()
            for name in ("memory.max", "memory.current")
        )
    except OSError:
        return math.inf
    return math.inf if limit == "max" else max(int(limit) - int(used), 0)


def _kilobytes(path: str, name: str) -> int:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
