"""Processes share rollouts and states: simulated here by threads with a fake policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes import EOS, MASK, FakePolicy

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import BlockSchedule, states_by_update
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import SamplingPlan, generate_until_correct


class Threads:
    """A process group of threads: `all_gather_object` waits for all of them."""

    def __init__(self, size: int) -> None:
        self.size, self.lists = size, [[]] * size
        self.barrier = threading.Barrier(size, timeout=300)

    def of(self, rank: int) -> Any:
        group = type("ProcessGroup", (), {"rank": rank, "size": self.size})()
        group.all_gather_object = lambda items: self.all_gather_object(rank, items)
        return group

    def all_gather_object(self, rank: int, items: list[Any]) -> list[Any]:
        self.lists[rank] = items
        self.barrier.wait()
        found = [item for part in self.lists for item in part]
        self.barrier.wait()
        return found

    def run(self, work: Callable[[int, Any], Any]) -> list[Any]:
        found: list[Any] = [None] * self.size
        runners = [
            threading.Thread(target=lambda r=rank: found.__setitem__(r, work(r, self.of(r))))
            for rank in range(self.size)
        ]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        return found


def prompts(names: str) -> list[tuple[Problem, torch.Tensor]]:
    return [(Problem(name, "1", "1"), torch.tensor([1 + i, 2])) for i, name in enumerate(names)]


CORRECT_AT = {"a": 0, "b": 2, "c": 9, "d": 5}


def sample(policy: FakePolicy, names: str, first: float = 0.9) -> dict[str, list[tuple[Any, ...]]]:
    plan = SamplingPlan(6, first, 0.9, stop_at_first_correct=True, decoding=Decoding(2, 2, 1))
    is_right = lambda p, r: r.attempt == CORRECT_AT[p.id]  # noqa: E731
    found = generate_until_correct(policy, prompts(names), plan, is_right)
    return {
        name: [tuple(rollout.to_dict().values())[1:] for rollout in tried]
        for name, tried in found.items()
    }


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_processes_sample_what_one_does_whichever_of_them_has_the_hard_problems(first: float):
    alone = {name: sample(FakePolicy(2), name, first)[name] for name in "abcd"}
    policies = [FakePolicy(2), FakePolicy(2), FakePolicy(2)]

    def work(rank: int, group: Any) -> dict[str, Any]:
        policies[rank].process_group = group
        return sample(policies[rank], ("a", "bc", "d")[rank], first)

    shared = Threads(3).run(work)
    counts = {name: len(tried) for part in shared for name, tried in part.items()}
    assert counts == {"a": 1, "b": 3, "c": 6, "d": 6}
    for name in "abcd":
        found = next(part[name] for part in shared if name in part)
        assert [one[0] for one in found] == list(range(len(found)))
        assert [one[2:] for one in found] == [one[2:] for one in alone[name]]
    rows = [sum(len(ids) for ids in policy.seen) for policy in policies]
    assert max(rows) < 9  # the attempts at b and c, which belong to one process


def test_the_last_problems_are_tried_several_times_at_once_and_no_attempt_after_a_right_one_stays():
    policies = [FakePolicy(2) for _ in range(4)]

    def work(rank: int, group: Any) -> dict[str, Any]:
        policies[rank].process_group = group
        return sample(policies[rank], "b" if rank == 0 else "")

    found = Threads(4).run(work)
    assert len(found[0]["b"]) == 3
    # attempts 0 to 3, one each, and no second wave
    assert [len(policy.seen) for policy in policies] == [1, 1, 1, 1]


def test_a_rollout_survives_its_way_to_another_process():
    rollout = Rollout("p", 3, torch.tensor([1, 2]), torch.tensor([4, EOS]), torch.tensor([1, 0]))
    values = {"problem_id": "p", "attempt": 3, "prompt_ids": [1, 2]}
    values |= {"completion_ids": [4, EOS], "revealed_at": [1, 0]}
    assert Rollout.from_dict(rollout.to_dict()).to_dict() == rollout.to_dict() == values


def rollout(name: str, prompt: int, seed: int) -> Rollout:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 7, (12,), generator=generator)
    return Rollout(name, 0, torch.ones(prompt, dtype=torch.long), ids, torch.arange(12) // 2)


@pytest.mark.parametrize("scope", ["future_blocks", "all_masked"])
def test_shares_of_the_states_are_together_all_of_them(scope: str):
    config = DOpsdConfig(reveal_scope=scope, updates_per_trajectory=3, drop_remainder=False)
    geometry = BlockSchedule(4, (2, 2), MASK, EOS)
    kept = [rollout("a", 3, 0), rollout("b", 5, 1), rollout("c", 2, 2)]
    whole = states_by_update(kept, config, geometry, (0, 0))
    shares = [
        states_by_update(kept, config, geometry, (0, 0), None, (rank, 5)) for rank in range(5)
    ]
    for update, states in enumerate(whole):
        parts = [share[update] for share in shares if share[update] is not None]
        sizes = [0 if share[update] is None else len(share[update]) for share in shares]
        assert sum(sizes) == len(states) and max(sizes) - min(sizes) <= 1 + (scope == "all_masked")
        for name in ("candidates", "committed", "k", "step", "weight"):
            assert torch.equal(torch.cat([vars(part)[name] for part in parts]), vars(states)[name])
        assert torch.equal(
            torch.cat([part.student_ids[:, -12:] for part in parts]), states.student_ids[:, -12:]
        )
