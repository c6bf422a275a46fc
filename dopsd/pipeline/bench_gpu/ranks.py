"""Two ranks: the summed gradients of two processes are those of one, and how fast they are summed.

`python -m dopsd.pipeline.bench_gpu.ranks` is one rank; `run` starts two of them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dopsd.models.device import take_device
from dopsd.pipeline.bench_gpu.checks import CPU, GRADIENT, STATES, embedded, rollouts
from dopsd.pipeline.bench_gpu.subject import algorithm, states_of
from dopsd.training.optim import sum_gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS = 2
SECONDS = 180  # until ranks that wait for each other are given up
END = 900  # characters that are kept of what a failed rank printed
SUMMED = 2**28  # bytes of a timed all-reduce


def run() -> dict[str, Any]:
    """Start two ranks, and return what the first one found.

    Raises:
        RuntimeError: if a rank failed, with the end of what it printed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    with TemporaryDirectory() as folder:
        outputs = [Path(folder, f"rank-{rank}") for rank in range(RANKS)]
        ranks = [_start(rank, shared, path) for rank, path in enumerate(outputs)]
        try:
            _wait(ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        texts = [path.read_text(errors="replace") for path in outputs]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(_errors(ranks, texts))
    found: dict[str, Any] = json.loads(texts[0].splitlines()[-1])
    return found


def _start(rank: int, shared: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
    with output.open("wb") as file:  # a pipe that nobody reads would block the rank
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | shared | own,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all ranks ended or one failed, since the others then wait for it."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        codes = [rank.poll() for rank in ranks]
        if any(codes) or None not in codes:
            return
        time.sleep(0.1)


def _errors(ranks: Sequence[subprocess.Popen[bytes]], texts: Sequence[str]) -> str:
    """Return the end of what each rank printed, those that failed by themselves first."""
    ends = [
        f"rank {i} ended with {rank.returncode}: {text[-END:]}"
        for i, (rank, text) in enumerate(zip(ranks, texts, strict=True))
    ]
    return "; ".join(sorted(ends, key=lambda end: f"ended with {-SIGKILL}:" in end))


def _gradient(device: torch.device, rank: int, size: int) -> torch.Tensor:
    """Return the gradient of this rank's share of the states, summed over the ranks."""
    rollout = rollouts(*embedded(CPU), 0.9, 1)[0]
    params, policy = embedded(device)
    method = algorithm(params, policy)
    planned = states_of(params, method, rollout)
    chosen = list(range(min(STATES, len(planned))))[rank::size]
    method.loss(policy, planned.rows(chosen).to(device)).total.backward()
    weights = [p for p in policy.trainable().values() if p.grad is not None]
    if size > 1:
        sum_gradients(weights)
    return torch.cat([p.grad.flatten() for p in weights if p.grad is not None])


def _gb_per_second(device: torch.device) -> float:
    """Return the gigabytes of gradients that the ranks sum in a second."""
    values = torch.ones(SUMMED // 4, device=device)
    started = 0.0
    for turns in (2, 10):  # the first two are a warm-up
        dist.barrier()
        started = time.perf_counter()
        for _ in range(turns):
            dist.all_reduce(values)
        values[0].item()
    return 10 * SUMMED / 1e9 / (time.perf_counter() - started)


def worker() -> None:
    """Be one rank; the first prints what was found as JSON."""
    device = take_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    together, alone = _gradient(device, rank, RANKS), _gradient(device, 0, 1)
    difference = ((together - alone).norm() / alone.norm()).item()
    found = {
        "difference": difference,
        "bound": GRADIENT,
        "of": "the gradient's norm",
        "is_within": difference <= GRADIENT,
        "all_reduce_gb_per_second": round(_gb_per_second(device), 1),
    }
    dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    worker()
