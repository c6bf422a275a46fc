"""Trajectories an hour, ours against plain: pass@8, then an update from each correct rollout.

    python benchmarks/trajectory.py

Ours samples in waves and trains in micro-batches; plain does everything one by one. First it is
checked that greedy attempts are equal in number and in every token. The first correct attempt of
each problem was drawn once as for GSM8K with LLaDA-8B-Instruct, so that both sides do the same
work. On a GPU use `--shape 8b`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import plain
import torch
from shapes import CHUNK, Shape
from torch import Tensor
from update import in_parts
from versus import Side, arguments, duel, each_shape, report

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.algorithms.d_opsd.states import BlockSchedule, states_by_update
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import SamplingPlan, generate_until_correct

ROWS = 16
ATTEMPTS = 8  # k of pass@k
PASS_K = SamplingPlan(ATTEMPTS, 0.9, 0.9, stop_at_first_correct=True, decoding=Decoding(1, 1, 1))
# first correct attempt of each problem, from 1, by `git show e791f448:benchmarks/stragglers.py`
FIRST = (1, 1, 1, 1, 1, 1, 1, 2, 1, 3, 1, 3, 3, 4, 1, 1)


class Work:
    """Problems with the number of the first correct attempt, from 1; above ATTEMPTS: none."""

    def __init__(self, shape: Shape, temperature: float) -> None:
        self.shape, self.decoding = shape, replace(shape.sampling, temperature=temperature)
        self.first = FIRST[: len(shape.prompts)]
        d, policy = shape.sampling, shape.policy
        blocks = BlockSchedule(
            d.block_length, tuple(d.num_transfer_tokens), policy.mask_id, policy.eos_id
        )
        self.blocks, self.method = blocks, DOpsd(shape.method, None, blocks)  # type: ignore[arg-type]

    @property
    def rollouts(self) -> int:
        """Rollouts of all problems."""
        return sum(min(first, ATTEMPTS) for first in self.first)

    @property
    def kept(self) -> list[int]:
        """Indices of the problems with a correct rollout."""
        return [i for i, first in enumerate(self.first) if first <= ATTEMPTS]

    def ours(self) -> list[list[Rollout]]:
        """Sample all problems together, in waves."""
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
        """Sample problem by problem, attempt by attempt."""
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
        """Return all states of a rollout to train on."""
        states = states_by_update([rollout], self.shape.method, self.blocks, (0, 0))[0]
        return states.to(self.shape.policy.device)

    def learn_ours(self, tried: list[list[Rollout]]) -> None:
        """Compute the gradients of each kept rollout in micro-batches."""
        for i in self.kept:
            in_parts(self.shape, self.method, self.states(tried[i][-1]))
            self._forget()

    def learn_theirs(self, tried: list[list[plain.Trajectory]]) -> None:
        """Compute the gradients of each kept rollout in chunks."""
        for i in self.kept:
            ids, prompt = tried[i][-1].ids, self.shape.prompts[i]
            for chunk in self.states(
                self._as_rollout(ids[len(prompt) :], prompt, tried[i][-1].states)
            ).split(CHUNK):
                plain.chunk_loss(self.shape.policy, chunk, self.shape.method).backward()
            self._forget()

    def _as_rollout(self, ids: Tensor, prompt: Tensor, states: list[Tensor]) -> Rollout:
        """Return plain's trajectory as a rollout.

        The step that committed a position is the number of states that mask it, minus 1.
        """
        masked = torch.stack(
            [state[len(prompt) :] == self.shape.policy.mask_id for state in states]
        )
        return Rollout("p", 0, prompt, ids.cpu(), masked.sum(0).cpu() - 1)

    def _forget(self) -> None:
        """Drop the gradients: an optimizer step would cost both sides the same."""
        for p in self.shape.policy.trainable().values():
            p.grad = None


def same(shape: Shape) -> int:
    """Check that both sides make the same greedy attempts; return how many.

    Raises:
        AssertionError: if the number of attempts or a rollout differs.
    """
    work = Work(shape, 0.0)
    for ours, theirs, prompt in zip(work.ours(), work.theirs(), shape.prompts, strict=True):
        if len(ours) != len(theirs):
            raise AssertionError(f"{len(ours)} attempts, plain has {len(theirs)}")
        for one, other in zip(ours, theirs, strict=True):
            expected = work._as_rollout(other.ids[len(prompt) :], prompt, other.states)
            if not (
                torch.equal(one.completion_ids, expected.completion_ids)
                and torch.equal(one.revealed_at, expected.revealed_at)
            ):
                raise AssertionError("rollouts differ")
    return work.rollouts


def timed(shape: Shape, repeats: int) -> dict[str, Any]:
    """Time both sides at a shape."""
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
    figures = duel(shape, theirs, ours, flops, work.rollouts * decoding.gen_length, repeats)
    facts = {
        "problems": len(shape.prompts),
        "rollouts": work.rollouts,
        "kept": len(work.kept),
        "states": states,
    }
    plain_hour, ours_hour = (
        3600 * len(work.kept) / seconds for seconds in (figures.plain_seconds, figures.ours_seconds)
    )
    return facts | {"plain_an_hour": plain_hour, "ours_an_hour": ours_hour} | asdict(figures)


def per_trajectory(decoding: Decoding) -> int:
    """Return the states of a trajectory: all steps except those of the last block."""
    return decoding.steps - decoding.steps * decoding.block_length // decoding.gen_length


def main() -> None:
    a = arguments(__doc__, ["embedded"])
    results: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, ROWS):
        if a.toy:
            shape = replace(shape, sampling=replace(shape.sampling, gen_length=64, steps=8))
        check = {"same_rollouts": same(shape)} if shape.is_exact else {}
        results[shape.name] = {"checked": check, "timed": timed(shape, a.repeats)}
    report(results, a.out)


if __name__ == "__main__":
    main()
