"""Measure ours against plain in one process: repeats in turns, medians, peak memory, utilisation.

`rollout.py`, `update.py`, `trajectory.py` and `evaluate.py` use this; their shapes are in
shapes.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, Shape, wait
from torch import Tensor

from dopsd.models import memory
from dopsd.models.device import own_device
from dopsd.models.llm_policy import LlmPolicy


class Enough(Exception):
    """Raised when enough forwards have been timed."""


class Counted:
    """A policy that stops after `most` forwards: the first steps of a rollout represent all."""

    def __init__(self, policy: LlmPolicy, most: int) -> None:
        self.policy, self.left = policy, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        if self.left == 0:
            raise Enough
        self.left -= 1
        return self.policy.hidden(ids, mask)


def first_steps(policy: LlmPolicy, steps: int | None, work: Callable[[LlmPolicy], Any]) -> None:
    """Run the work until it has made so many forwards; None: to its end."""
    with suppress(Enough):
        work(policy if steps is None else Counted(policy, steps))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Timed:
    """Time and memory of one call."""

    seconds: float
    peak: int  # bytes beyond what was held before


def measured(device: torch.device, work: Callable[[], Any]) -> Timed:
    """Measure one call."""
    seconds: list[float] = []

    def timed() -> None:
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - started)

    before = memory.held(device)
    most = memory.peak(device, timed)
    return Timed(seconds[0], most - before)


@dataclass(frozen=True)
class Duel:
    """Medians over repeats that were taken in turns."""

    plain_seconds: float  # for as much work as ours
    ours_seconds: float
    ratio: float  # plain's seconds divided by ours
    ratio_low: float  # smallest ratio of a repeat
    ratio_high: float  # largest ratio of a repeat
    plain_peak_mb: float
    ours_peak_mb: float
    repeats: int
    plain_tokens_per_second: float  # tokens that rollouts commit or updates read
    ours_tokens_per_second: float
    # useful work: forwards and backwards of the model, without logits that are not needed
    plain_tflops: float
    ours_tflops: float
    ours_utilisation: float  # of the matmul rate measured in the same process


@dataclass(frozen=True)
class Side:
    """What one side does in a timed call."""

    work: Callable[[], Any]
    share: float = 1.0  # of the other side's work
    warm_up: Callable[[], Any] | None = None  # less work, if a whole call would take minutes


def duel(shape: Shape, plain: Side, ours: Side, flops: float, tokens: float, repeats: int) -> Duel:
    """Time plain and ours in turns after a warm-up, so that a slower machine slows both.

    Args:
        shape: the shape.
        plain: plain's work.
        ours: our work.
        flops: useful FLOPs of a call of ours.
        tokens: tokens of a call of ours.
        repeats: timed calls of each side.
    """
    device = shape.policy.device
    for side in (plain, ours):
        (side.warm_up or side.work)()
    rounds = [(measured(device, plain.work), measured(device, ours.work)) for _ in range(repeats)]
    ratios = sorted(a.seconds / plain.share / b.seconds for a, b in rounds)
    theirs, mine = (
        statistics.median(side.seconds for side in sides) for sides in zip(*rounds, strict=True)
    )
    theirs /= plain.share
    peaks = [max(side.peak for side in sides) / 2**20 for sides in zip(*rounds, strict=True)]
    rates = [flops / seconds / 1e12 for seconds in (theirs, mine)]
    utilisation = rates[1] * 1e12 / shape.ceiling
    speeds = [tokens / seconds for seconds in (theirs, mine)]
    return Duel(
        theirs,
        mine,
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        *peaks,
        repeats,
        *speeds,
        *rates,
        utilisation,
    )


def arguments(text: str, shapes: Sequence[str] = ("embedded", "vocabulary")) -> argparse.Namespace:
    """Parse the command line that these benchmarks share; `text` describes the benchmark."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shape", nargs="+", choices=sorted(SHAPES), default=list(shapes))
    parser.add_argument(
        "--toy",
        action="store_true",
        help="a small model instead of shape 8b: to try the script on a CPU",
    )
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    return parser.parse_args()


def each_shape(a: argparse.Namespace, rows: int) -> Iterator[Shape]:
    """Yield the shapes of the command line."""
    for name in a.shape:
        yield SHAPES[name](rows, own_device(), a.toy)


def report(results: dict[str, dict[str, Any]], out: Path | None) -> None:
    """Print a table and JSON, and write the JSON to a file if one is given."""
    device = own_device()
    name = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    machine = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    columns = (
        "ratio",
        "plain_seconds",
        "ours_seconds",
        "plain_peak_mb",
        "ours_peak_mb",
        "ours_tokens_per_second",
    )
    columns += ("ours_tflops", "ours_utilisation")
    table = Table(*("shape", *(column.replace("_", " ") for column in columns)), box=SIMPLE)
    for shape, figures in results.items():
        timed = figures["timed"]
        table.add_row(shape, *(f"{timed[column]:.3g}" for column in columns))
    Console(width=130).print(table)
    text = json.dumps({"machine": machine} | results, indent=1)
    sys.stdout.write(text + "\n")
    if out:
        out.write_text(text + "\n")
