"""Profile rollouts and updates: the five operators that take the most time, by torch.profiler.

    python benchmarks/costs.py [--shape embedded vocabulary]

On a GPU use `--shape 8b`. Shares are of the operators' own time: on the GPU, or in all CPU threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, Shape
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from update import in_parts, states_of
from versus import first_steps

from dopsd.models.device import own_device
from dopsd.rollout.sampler import GenerationRequest, denoise

TOP = 5


def largest(work: Callable[[], Any], is_gpu: bool) -> list[tuple[str, float, int]]:
    """Return name, share of all operators' own time and calls of the TOP operators."""
    work()  # warm-up
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=kinds) as profiler:
        work()
    rows = profiler.key_averages()
    if is_gpu:  # kernels only: the operators that start them would count them twice
        rows = [e for e in rows if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    times = [
        (e.key, e.self_device_time_total if is_gpu else e.self_cpu_time_total, e.count)
        for e in rows
    ]
    whole = sum(time for _, time, _ in times)
    return [
        (name, time / whole, calls)
        for name, time, calls in sorted(times, key=lambda one: -one[1])[:TOP]
    ]


def parts(shape: Shape) -> dict[str, Callable[[], Any]]:
    """Return the work to profile, by name."""
    requests = [GenerationRequest(str(i), 0, prompt, i) for i, prompt in enumerate(shape.prompts)]
    method, states = states_of(shape)
    few = states if shape.name == "embedded" else next(states.split(2 * shape.micro_batch))
    return {
        "rollouts": lambda: first_steps(
            shape, lambda policy: denoise(policy, requests, shape.sampling)
        ),
        "update": lambda: in_parts(shape, method, few),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", nargs="+", choices=sorted(SHAPES), default=["embedded", "vocabulary"]
    )
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--toy", action="store_true")
    a = parser.parse_args()
    for name in a.shape:
        shape = SHAPES[name](4 if name == "vocabulary" else a.rows, own_device(), a.toy)
        for part, work in parts(shape).items():
            table = Table(f"{name}, {part}", "% of operators' time", "calls", box=SIMPLE)
            for operator, share, calls in largest(work, own_device().type == "cuda"):
                table.add_row(operator, f"{100 * share:.1f}", str(calls))
            Console(width=100).print(table)


if __name__ == "__main__":
    main()
