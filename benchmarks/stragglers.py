"""Simulate how well a collect uses many GPUs when problems take between one and eight attempts.

    python benchmarks/stragglers.py

Simulated are 8, 64 and 512 processes under three schedules:
    own     each process samples its own problems, as published
    shared  every wave and the states to train on are split evenly over the processes
    ahead   shared, and with fewer problems than processes several attempts at once, as dopsd does

Efficiency is the work that pass@k with early stopping needs, divided by processes x time. Under
`own` the gradient waits for the slowest sampler, and the next collect for the slowest trainer. Time
is taken to be proportional to the number of rollouts.

A problem's chance of a correct answer has a Beta distribution. Its mean is the measured accuracy,
and its spread gives the measured mean number of attempts (dopsd/config/profiles/llada-8b.yaml,
facts).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dopsd.config import profiles
from dopsd.distributed.process_group import SingleProcess
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import SamplingPlan, wave_width

ATTEMPTS = 8  # k of pass@k
# of LLaDA-8B-Instruct at length 256, from published generations
ACCURACY = {"gsm8k": 0.773, "math500": 0.324, "countdown": 0.195}
# PFLOP, as docs/pretended-gpu.md counts them: 128 forwards, a row each; 112 states
ROLLOUT, TRAJECTORY = 0.426 * 128 / 64, 0.280 * 112 / 14
COLLECTS = 200
PASS_K = SamplingPlan(ATTEMPTS, 0.9, 0.9, stop_at_first_correct=True, decoding=Decoding(1, 1, 1))


class SimulatedGroup(SingleProcess):
    """A group of simulated processes."""

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass(frozen=True)
class Beta:
    """The distribution over problems of the chance of a correct answer."""

    a: float
    b: float

    def mean_attempts(self) -> float:
        """Return E[min(first correct attempt, ATTEMPTS)] = sum over n of E[(1-p)^n]."""
        total, product = 0.0, 1.0
        for n in range(ATTEMPTS):
            total += product
            product *= (self.b + n) / (self.a + self.b + n)
        return total


def fitted(accuracy: float, attempts: float) -> Beta:
    """Fit the spread by bisection: a wider distribution needs more attempts."""
    narrow, wide = 1000.0, 1e-3  # a + b
    for _ in range(60):
        middle = (narrow * wide) ** 0.5
        if Beta(accuracy * middle, (1 - accuracy) * middle).mean_attempts() < attempts:
            narrow = middle
        else:
            wide = middle
    return Beta(accuracy * wide, (1 - accuracy) * wide)


def first_right(beta: Beta, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Draw the first correct attempt of each problem, from 1; ATTEMPTS + 1 means none.

    Args:
        beta: the chances of a correct answer.
        shape: collects, processes, problems of each process.
        generator: the random numbers.
    """
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
    chance = torch.distributions.Beta(beta.a, beta.b).sample(shape).clamp(1e-6, 1 - 1e-6)
    tries = 1 + (torch.rand(shape).log() / torch.log1p(-chance)).floor()
    return tries.clamp(max=ATTEMPTS + 1).long()


def efficiency(first: Tensor, schedule: str) -> float:
    """Return useful work divided by capacity; `first` is [collects, processes, problems]."""
    collects, ranks, _ = first.shape
    attempts, kept = first.clamp(max=ATTEMPTS), first <= ATTEMPTS
    useful = ROLLOUT * attempts.sum().item() + TRAJECTORY * kept.sum().item()
    if schedule == "own":
        busy = ROLLOUT * attempts.sum(2).max(1).values + TRAJECTORY * kept.sum(2).max(1).values
        return useful / (ranks * busy.sum().item())
    elapsed = 0.0
    for one in first.view(collects, -1):
        done, all_gather_object = 0, SimulatedGroup(ranks)
        while (waiting := int((one > done).sum())) and (
            width := wave_width(all_gather_object, PASS_K, done, waiting)
        ):
            width = width if schedule == "ahead" else 1
            elapsed += ROLLOUT * -(-waiting * width // ranks)
            done += width
        elapsed += TRAJECTORY * int((one <= ATTEMPTS).sum()) / ranks  # states are split evenly
    return useful / (ranks * elapsed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems", type=int, nargs="+", default=[1, 2, 4, 8], help="of each process in a collect"
    )
    a = parser.parse_args()
    table = Table("task", "processes", "problems each", "own %", "shared %", "ahead %", box=SIMPLE)
    generator = torch.Generator().manual_seed(0)
    for task, accuracy in ACCURACY.items():
        beta = fitted(accuracy, profiles.families()["llada-8b"].attempts[task])
        for ranks in (8, 64, 512):
            for problems in a.problems:
                first = first_right(
                    beta, (COLLECTS if ranks < 512 else COLLECTS // 4, ranks, problems), generator
                )
                shares = [
                    f"{100 * efficiency(first, schedule):.0f}"
                    for schedule in ("own", "shared", "ahead")
                ]
                table.add_row(task, str(ranks), str(problems), *shares)
    Console().print(table)


if __name__ == "__main__":
    main()
