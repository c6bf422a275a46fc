"""What the teacher of the example plug-in is shown of a trajectory."""

from __future__ import annotations

from dataclasses import replace

import torch
from example_plugin import plugin_loop, plugin_run
from fakes import EOS, FakePolicy

from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.trace_rl.states import plan_states
from dopsd.core.types import Rollout, Score
from verified_future.teacher import Verified, shown_positions, verified

TOKENS = torch.tensor([1, 2, 3, 4, 5, 6, EOS, EOS])
STEPS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])  # blocks of two tokens, a step each


def plan_of(shrink: int = 1):
    rollout = Rollout("p", 0, torch.tensor([7, 7]), TOKENS, STEPS)
    return plan_states(FakePolicy(), [Rewarded(rollout, 1.0, 1.0)], shrink, predicts_all=False)


def shown(future: Verified, shrink: int = 1, share: float = 1.0) -> list[list[int]]:
    plan = plan_of(shrink)
    keys = torch.arange(len(plan.first))
    found = shown_positions(plan, [future], keys, share, (2, EOS))
    assert not (found & plan.batch.loss_mask).any()
    return [row.nonzero()[:, 0].tolist() for row in found]


def test_a_right_rollout_is_shown_later_blocks_and_nothing_once_its_text_ends():
    own = Verified(TOKENS, TOKENS >= 0, len(TOKENS))
    assert shown(own) == [[2, 3, 4, 5, 6, 7], [4, 5, 6, 7], [], []]
    assert shown(own, shrink=2) == [[4, 5, 6, 7], []]  # a state that predicts two blocks
    assert [len(row) for row in shown(own, share=0.3)] == [2, 2, 0, 0]  # 1.8 and 1.2, rounded up
    assert shown(own, share=0.0) == [[], [], [], []]


def test_a_wrong_rollout_is_shown_the_answer_only_while_none_of_it_is_filled_in():
    """The answer stands at 3 to 5: at the second state its first token is in the block."""
    span = Verified(TOKENS, (torch.arange(8) >= 3) & (torch.arange(8) < 6), 3)
    assert shown(span) == [[3, 4, 5], [], [], []]
    assert shown(Verified(TOKENS, TOKENS < 0, 0)) == [[], [], [], []]


def test_a_wrong_rollout_gets_the_gold_answer_that_the_verifier_accepts(project):
    loop = plugin_loop(plugin_run("routed", group_size=3))
    policy, task = loop.policy, loop.task
    problem = loop.problems[0]
    other = "1234123412341234"
    assert problem.answer != other

    def filled(text: str) -> Verified:
        ids = policy.text.tokens(text)
        ids = torch.cat([ids, torch.full((40 - len(ids),), policy.eos_id)])
        rollout = Rollout(problem.id, 0, torch.tensor([1]), ids, torch.arange(40) // 2)
        return verified(policy, task, problem, Rewarded(rollout, 0.0, -1.0))

    found = filled(f"<reasoning>{other}</reasoning><answer>{other}</answer>")
    assert found.showable.sum() == len(policy.text.tokens(problem.answer))
    assert found.showable.nonzero()[0, 0] == found.latest > 0
    assert problem.answer == policy.text.decode(found.ids[found.showable])
    assert not filled(f"<reasoning>{other}</reasoning>{other}").showable.any()  # no tag
    wrong = replace(problem, answer="4" * 16)  # an answer that its verifier refuses
    ids = policy.text.tokens(f"<answer>{other}</answer>")
    rollout = Rollout(problem.id, 0, torch.tensor([1]), ids, torch.zeros_like(ids))
    refused = Refusing(), wrong, Rewarded(rollout, 0.0, -1.0)
    assert not verified(policy, *refused).showable.any()
    assert verified(policy, task, problem, replace(refused[2], is_correct=True)).showable.all()


class Refusing:
    """A task whose verifier accepts nothing."""

    def answer_text(self, problem):
        return problem.answer

    def verify(self, problem, text):
        return Score(None, 0.0, correct=False)
