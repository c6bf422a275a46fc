"""Trajectories an hour: pass@8, then learning from what was right: ours (waves, micro-batches)
against plain (one by one).

`python benchmarks/trajectory.py`: problems of the embedded shape, whose first right attempts are
drawn as those of GSM8K with LLaDA-8B-Instruct (stragglers.py), so that both sides have the same
work. Checked first: greedy attempts are as many, and the same, token for token. On a GPU: `--shape
8b`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import plain
import torch
from shapes import CHUNK, Shape
from stragglers import ACCURACY, ATTEMPTS, PASS_K, first_right, fitted
from torch import Tensor
from update import in_parts
from versus import Side, arguments, duel, each_shape, report

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.common.distillation import SelfDistillation
from dopsd.algorithms.common.states import BlockSchedule, states_by_update
from dopsd.config import profiles
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.engine import generate_until_correct
from dopsd.rollout.sampler import Decoding

ROWS, TASK = 16, "gsm8k"


class Work:
    """Problems, and which attempt at each is the first right one, counted from 1; more than
    ATTEMPTS: none.
    """

    def __init__(self, shape: Shape, temperature: float) -> None:
        self.shape, self.decoding = shape, replace(shape.sampling, temperature=temperature)
        beta = fitted(ACCURACY[TASK], profiles.facts(TASK)["attempts"])
        drawn = first_right(beta, (1, 1, len(shape.prompts)), torch.Generator().manual_seed(0))
        self.first = drawn.flatten().tolist()
        d, policy = shape.sampling, shape.policy
        blocks = BlockSchedule(
            d.block_length, tuple(d.num_transfer_tokens), policy.mask_id, policy.eos_id
        )
        self.blocks, self.method = blocks, SelfDistillation(shape.method, None, blocks)  # type: ignore[arg-type]

    @property
    def rollouts(self) -> int:
        return sum(min(first, ATTEMPTS) for first in self.first)

    @property
    def kept(self) -> list[int]:
        return [i for i, first in enumerate(self.first) if first <= ATTEMPTS]

    def ours(self) -> list[list[Rollout]]:
        """All problems together, in waves."""
        problems = [
            (Problem(str(i), "", ""), prompt) for i, prompt in enumerate(self.shape.prompts)
        ]
        decoding = replace(self.decoding, batch_size=len(problems))
        plan = replace(
            PASS_K,
            first_temperature=decoding.temperature,
            retry_temperature=decoding.temperature,
            decoding=decoding,
        )

        def is_correct(problem: Problem, rollout: Rollout) -> bool:
            return rollout.attempt + 1 == self.first[int(problem.id)]

        return list(generate_until_correct(self.shape.policy, problems, plan, is_correct).values())

    def theirs(self) -> list[list[plain.Trajectory]]:
        return [
            self._one_by_one(prompt, first)
            for prompt, first in zip(self.shape.prompts, self.first, strict=True)
        ]

    def _one_by_one(self, prompt: Tensor, first: int) -> list[plain.Trajectory]:
        tries = iter(range(1, ATTEMPTS + 1))
        return plain.sequential_attempts(
            self.shape.policy, prompt, self.decoding, ATTEMPTS, lambda _: next(tries) == first
        )

    def states(self, rollout: Rollout) -> States:
        return states_by_update([rollout], self.shape.method, self.blocks, (0, 0))[0]

    def learn_ours(self, tried: list[list[Rollout]]) -> None:
        for i in self.kept:
            in_parts(self.shape, self.method, self.states(tried[i][-1]))
            self._forget()

    def learn_theirs(self, tried: list[list[plain.Trajectory]]) -> None:
        for i in self.kept:
            ids, prompt = tried[i][-1].ids, self.shape.prompts[i]
            for chunk in self.states(
                self._as_rollout(ids[len(prompt) :], prompt, tried[i][-1].states)
            ).split(CHUNK):
                plain.chunk_loss(self.shape.policy, chunk, self.shape.method).backward()
            self._forget()

    def _as_rollout(self, ids: Tensor, prompt: Tensor, states: list[Tensor]) -> Rollout:
        """The step that committed a position is the number of states in which it was still masked,
        less one.
        """
        masked = torch.stack(
            [state[len(prompt) :] == self.shape.policy.mask_id for state in states]
        )
        return Rollout("p", 0, prompt, ids, masked.sum(0) - 1)

    def _forget(self) -> None:
        """An optimizer's step costs both sides the same: here gradients are dropped."""
        for p in self.shape.policy.trainable().values():
            p.grad = None


def same(shape: Shape) -> int:
    """Greedy: as many attempts at every problem, and the same rollouts. How many there were."""
    work = Work(shape, 0.0)
    for ours, theirs, prompt in zip(work.ours(), work.theirs(), shape.prompts, strict=True):
        if len(ours) != len(theirs):
            raise AssertionError(f"{len(ours)} attempts, plain has {len(theirs)}")
        for one, other in zip(ours, theirs, strict=True):
            again = work._as_rollout(other.ids[len(prompt) :], prompt, other.states)
            if not (
                torch.equal(one.completion_ids, again.completion_ids)
                and torch.equal(one.revealed_at, again.revealed_at)
            ):
                raise AssertionError("rollouts differ")
    return work.rollouts


def timed(shape: Shape, repeats: int) -> dict[str, Any]:
    work, decoding = Work(shape, shape.sampling.temperature), shape.sampling
    length = len(shape.prompts[0]) + decoding.gen_length
    states = len(work.kept) * per_trajectory(decoding)
    flops = work.rollouts * decoding.steps * shape.flops.forward(
        length
    ) + states * shape.flops.state(length, False)
    ours, theirs = (
        Side(lambda: work.learn_ours(work.ours())),
        Side(lambda: work.learn_theirs(work.theirs())),
    )
    found = duel(shape, theirs, ours, flops, work.rollouts * decoding.gen_length, repeats)
    facts = {
        "problems": len(shape.prompts),
        "rollouts": work.rollouts,
        "kept": len(work.kept),
        "states": states,
    }
    plain_hour, ours_hour = (
        3600 * len(work.kept) / seconds for seconds in (found.plain_seconds, found.ours_seconds)
    )
    return facts | {"plain_an_hour": plain_hour, "ours_an_hour": ours_hour} | asdict(found)


def per_trajectory(decoding: Decoding) -> int:
    """States of a trajectory: all steps but those of the last block."""
    return decoding.steps - decoding.steps * decoding.block_length // decoding.gen_length


def main() -> None:
    a = arguments(__doc__, ["embedded"])
    found: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, ROWS):
        if a.toy:
            shape = replace(shape, sampling=replace(shape.sampling, gen_length=64, steps=8))
        check = {"same_rollouts": same(shape)} if shape.is_exact else {}
        found[shape.name] = {"checked": check, "timed": timed(shape, a.repeats)}
    report(found, a.out)


if __name__ == "__main__":
    main()
