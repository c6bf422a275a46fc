"""Measure each optimisation alone: the same rollouts or update with and without it.

    python benchmarks/parts.py [--shape embedded vocabulary] [--compile]

Optimisations: the head at needed positions instead of everywhere, a batch instead of one rollout at
a time, noise in parts that fit a cache, adapters with the sum inside their product instead of
peft's, micro-batches of several sizes, and with --compile model.compile (after compilation). Shown
are the fastest of a few calls in turns, and peak memory beyond what was held before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from peft.tuners.lora import Linear
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, Shape
from torch import Tensor
from update import in_parts, states_of
from versus import Counted, Enough, Timed, measured

from dopsd.models.device import own_device
from dopsd.models.loading import compile_blocks
from dopsd.models.lora import LowRankLinear
from dopsd.rollout import sampler as sampling
from dopsd.rollout.sampler import GenerationRequest, denoise

ROWS = {"embedded": 16, "vocabulary": 4, "8b": 16}  # rollouts of a batch
ALL = 2**62  # noise elements in one part: no split


class FullHead:
    """A policy that also computes the head at every position, and discards the result."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        hidden = self.policy.hidden(ids, mask)
        self.policy.head(hidden)
        return hidden


def sampler(shape: Shape, rows: int, policy: Any = None) -> Callable[[], None]:
    """Return the work of sampling the shape's prompts, `rows` at once, for the timed steps."""
    requests = [GenerationRequest(str(i), 0, prompt, i) for i, prompt in enumerate(shape.prompts)]

    def work() -> None:
        for start in range(0, len(requests), rows):
            most = shape.steps or shape.sampling.steps
            with suppress(Enough):
                denoise(
                    Counted(policy or shape.policy, most),
                    requests[start : start + rows],
                    shape.sampling,
                )

    return work


def updater(shape: Shape, micro_batch: int, policy: Any = None) -> Callable[[], None]:
    """Return the work of one update's gradients with a micro-batch size."""
    method, states = states_of(shape)
    changed = replace(shape, micro_batch=micro_batch, policy=policy or shape.policy)

    def work() -> None:
        in_parts(changed, method, states)
        for p in shape.policy.trainable().values():
            p.grad = None

    return work


def all_noise(work: Callable[[], None]) -> Callable[[], None]:
    """Return the work with all noise drawn in one part."""

    def whole() -> None:
        with mock.patch.multiple(sampling, CPU_NOISE=ALL, GPU_NOISE=ALL):
            work()

    return whole


def savings(shape: Shape) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Return by name the work without and with each optimisation."""
    rows, micro = len(shape.prompts), shape.micro_batch
    ours, update = sampler(shape, rows), updater(shape, micro)
    pairs = {
        "rollouts: head at masked positions": (sampler(shape, rows, FullHead(shape.policy)), ours),
        f"rollouts: {rows} at once": (sampler(shape, 1), ours),
        "rollouts: noise in parts": (all_noise(ours), ours),
        "rollouts: adapters added in their product": (with_pefts_layers(ours), ours),
        "update: adapters added in their product": (with_pefts_layers(update), update),
        "update: head at needed positions": (updater(shape, micro, FullHead(shape.policy)), update),
    }
    for size in sorted({1, 4, 14} - {micro}):
        pairs[f"update: {micro} states at once, not {size}"] = (updater(shape, size), update)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", nargs="+", choices=sorted(SHAPES), default=["embedded", "vocabulary"]
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--toy",
        action="store_true",
        help="a small model instead of shape 8b: to try the script on a CPU",
    )
    parser.add_argument(
        "--compile", action="store_true", help="model.compile too; needs a C++ compiler or a GPU"
    )
    a = parser.parse_args()
    for name in a.shape:
        shape = SHAPES[name](ROWS[name], own_device(), a.toy)
        shape = replace(
            shape,
            prompts=shape.prompts[: ROWS[name]],
            steps=4 if name == "vocabulary" else shape.steps,
        )
        table = Table(
            name, "without, s", "with, s", "times faster", "without, MB", "with, MB", box=SIMPLE
        )
        pairs = savings(shape)
        if a.compile:
            pairs |= compiled(shape)
        for saving, sides in pairs.items():
            calls = [[measured(own_device(), side) for side in sides] for _ in range(a.repeats)]
            slow, fast = (
                min(side, key=lambda one: one.seconds) for side in zip(*calls, strict=True)
            )
            table.add_row(saving, *_figures(slow, fast))
        Console(width=120).print(table)


def compiled(shape: Shape) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Return the work without and with model.compile, after a first call that compiles."""
    blocks = shape.policy.core.model.transformer["blocks"]
    compile_blocks(shape.policy.core)
    fast = [block._compiled_call_impl for block in blocks]

    def switched(is_on: bool) -> None:
        for block, call in zip(blocks, fast, strict=True):
            block._compiled_call_impl = call if is_on else None

    def through(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            switched(True)
            work()
            switched(False)

        return run

    switched(False)
    works = {
        "rollouts": sampler(shape, len(shape.prompts)),
        "update": updater(shape, shape.micro_batch),
    }
    for work in works.values():
        through(work)()
    return {f"{name}: compiled": (work, through(work)) for name, work in works.items()}


def with_pefts_layers(work: Callable[[], None]) -> Callable[[], None]:
    """Return the work with peft's adapters: three more passes over the outputs, in float32."""

    def run() -> None:
        with mock.patch.object(LowRankLinear, "forward", Linear.forward):
            work()

    return run


def _figures(slow: Timed, fast: Timed) -> list[str]:
    ratio = slow.seconds / fast.seconds
    return [
        f"{slow.seconds:.2f}",
        f"{fast.seconds:.2f}",
        f"{ratio:.2f}",
        *(f"{t.peak / 2**20:.0f}" for t in (slow, fast)),
    ]


if __name__ == "__main__":
    main()
