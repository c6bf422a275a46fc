"""Command bench-gpu: measure a GPU at LLaDA-8B's shape, and compare it with the model of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.cli.arguments import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands

DESCRIPTION = (
    "Measure this machine's GPU in at most 15 minutes: exactness against the CPU, rollouts, updates"
    " and memory at LLaDA-8B's shape with random weights, and two ranks if there are two GPUs."
    " Nothing is downloaded. The page in reports/bench-gpu/ compares all of it with a model of the"
    " GPU, and is meant to be sent back in an issue."
)


def add_bench_gpu(commands: Commands) -> None:
    """Add bench-gpu."""
    parser = commands.add_parser("bench-gpu", description=DESCRIPTION, help=DESCRIPTION)
    parser.add_argument("--quick", action="store_true", help="leave out the large shapes")
    parser.add_argument(
        "--layers",
        type=count,
        metavar="N",
        help="layers of the model (default: 32 as in LLaDA-8B, fewer on a card of less memory)",
    )


def _bench_gpu(a: argparse.Namespace) -> None:
    from dopsd.pipeline.bench_gpu.run import bench

    bench(a.quick, a.layers)


FREE: dict[str, Callable[[argparse.Namespace], None]] = {"bench_gpu": _bench_gpu}
