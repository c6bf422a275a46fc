"""The card of tests/cuda, and what the tests measure on it.

Each difference is a line of JSON: printed, and added to the file $CUDA_TESTS_RESULTS at once, so
that a session that is cut off keeps what it has found. CUDA_TESTS_DEVICE=cpu rehearses the tests
with the CPU in the card's place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import Batch
    from dopsd.training.trainer import Trainer

CPU = torch.device("cpu")
# read once: tests change the working directory
RESULTS = (
    Path(os.environ["CUDA_TESTS_RESULTS"]).resolve() if "CUDA_TESTS_RESULTS" in os.environ else None
)
WHY = "no NVIDIA GPU; CUDA_TESTS_DEVICE=cpu rehearses these tests on the CPU"
FILES = ["test_same_logits", "test_same_losses", "test_same_tokens"]  # what teaches most is first
FILES += ["test_fused_kernels", "test_full_memory", "test_training_steps", "test_killed_training"]

# Bounds in float32, as shares of a norm. Sums of some hundred products in another order move the
# last two or three of 24 bits, about 1e-6. A wrong mask, angle or index moves 1e-2 and more.
LOGITS = LOSS = 1e-5
GRADIENT = 1e-4  # a backward pass sums over all tokens, and some of its terms cancel

Within = Callable[..., None]


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The first card, computing float32 in full; the CPU in a rehearsal."""
    if os.environ.get("CUDA_TESTS_DEVICE") == "cpu":
        return CPU
    if not torch.cuda.is_available():
        pytest.skip(WHY)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Within:
    """`within(bound, name=difference)`: write all differences down, then compare them."""
    name, started = request.node.nodeid.split("/")[-1], time.monotonic()

    def check(bound: float, **differences: float) -> None:
        seconds = round(time.monotonic() - started, 3)
        for what, difference in differences.items():
            _write(test=name, what=what, difference=difference, bound=bound, seconds=seconds)
        too_large = {what: d for what, d in differences.items() if not d <= bound}  # NaN is
        assert not too_large, f"more than {bound}: {too_large}"

    return check


def note(**values: object) -> None:
    """Write down something that has no bound."""
    _write(**values)


def _write(**values: object) -> None:
    line = json.dumps(values)
    sys.stdout.write(line + "\n")
    if RESULTS:
        with RESULTS.open("a") as file:
            file.write(line + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of tests/cuda in the order of FILES."""
    ranks = {name: rank for rank, name in enumerate(FILES)}
    items.sort(key=lambda item: ranks.get(item.path.stem, -1))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how a test of tests/cuda failed, before the next one begins."""
    if report.failed and Path(report.fspath).stem in FILES:
        _write(test=report.nodeid.split("/")[-1], failed=str(report.longrepr)[-2000:])


def trainer(method: str, place: torch.device) -> Trainer:
    """Return a run of the toy project whose policy is on a device, and no longer the base."""
    from accelerate import Accelerator

    from dopsd.config.loading import load_params
    from dopsd.training.trainer import Trainer

    with mock.patch("dopsd.models.llm_policy.take_device", lambda: place):
        loop = Trainer(load_params().run("sudoku", method, 0), Accelerator(cpu=True))
    move(loop, 0.05, seed=1)
    return loop


def move(loop: Trainer, std: float, seed: int) -> None:
    """Move the weights in training by noise."""
    draw = torch.Generator().manual_seed(seed)
    for p in loop.parameters.values():
        p.data += (std * torch.randn(p.shape, generator=draw)).to(p)


def collect(loop: Trainer) -> list[Batch]:
    """Return the batches of the first update, made on the device of the policy."""
    while not loop.waiting:
        loop.collect()
    return loop.waiting[0]


def gradient_of(loop: Trainer) -> Tensor:
    """Return the gradients of all weights in training as one row on the CPU, and drop them."""
    parts = [p.grad.flatten().cpu() for p in loop.parameters.values() if p.grad is not None]
    for p in loop.parameters.values():
        p.grad = None
    return torch.cat(parts)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Return |ours - theirs| / |theirs|, on the CPU in float64."""
    a, b = (x.detach().to(CPU, torch.float64) for x in (ours, theirs))
    return ((a - b).norm() / b.norm()).item()
