"""Times, memory, waits and kernels of work on a GPU; on a CPU the same calls, for rehearsals."""

from __future__ import annotations

import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dopsd

PACKAGE = str(Path(dopsd.__file__).parent)
Work = Callable[[], object]
SHOWN = 12  # kernels and lines of a profile


class Timer:
    """Measures work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_gpu = device, device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Work) -> float:
        """Return the seconds of one run, without a warm-up."""
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - began

    def ms(self, work: Work, repeats: int = 3) -> float:
        """Return the median milliseconds of long work, after one run that warms up."""
        runs = [self.seconds(work) for _ in range(1 + repeats)][1:]
        return 1e3 * sorted(runs)[len(runs) // 2]

    def short_ms(self, work: Work) -> float:
        """Return the median milliseconds of a few kernels, with the GPU's cache emptied between."""
        if not self.is_gpu:
            return self.ms(work, 1)
        from triton.testing import do_bench

        return do_bench(work, warmup=20, rep=60, return_mode="median")

    def peak_gb(self) -> float | None:
        """Return the most gigabytes allocated since the last call; None on a CPU."""
        if not self.is_gpu:
            return None
        peak = torch.cuda.max_memory_allocated(self.device) / 1e9
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def kernels(self, work: Work) -> dict[str, Any]:
        """Return what the device did in one run: its busy time, and the kernels that took most.

        `host_ms` is the time of the run as the host sees it, with the profiler's own share; where
        `kernel_ms` is much less, the GPU waits for the host.
        """
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.is_gpu
        with profile(activities=activities) as found:
            host = self.seconds(work)
        spent, calls = Counter[str](), Counter[str]()
        for event in found.key_averages():
            is_kernel = str(event.device_type).endswith("CUDA")
            if is_kernel == self.is_gpu and not event.is_user_annotation:
                us = event.self_device_time_total if self.is_gpu else event.self_cpu_time_total
                spent[event.key[:70]] += us
                calls[event.key[:70]] += event.count
        return {
            "host_ms": 1e3 * host,
            "kernel_ms": sum(spent.values()) / 1e3,
            "launches": calls.total(),
            "top": [[name, us / 1e3, calls[name]] for name, us in spent.most_common(SHOWN)],
        }

    def waits(self, work: Work) -> dict[str, int]:
        """Return how often the host waits for the GPU in one run, by the line of dopsd."""
        lines = Counter[str]()

        def seen(message: object, *_: object, **__: object) -> None:
            if "called a synchronizing" not in str(message):
                return  # the mode warns of itself
            ours = [f for f in traceback.extract_stack() if f.filename.startswith(PACKAGE)]
            frame = ours[-1] if ours else traceback.extract_stack()[-2]
            lines[f"{Path(frame.filename).name}:{frame.lineno}"] += 1

        shown = warnings.showwarning
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = seen
            if self.is_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                work()
            finally:
                if self.is_gpu:
                    torch.cuda.set_sync_debug_mode("default")
                warnings.showwarning = shown
        return dict(lines.most_common(SHOWN))
