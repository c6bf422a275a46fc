"""Credit of a teacher for the tokens of a trajectory: what it is shown, and what it changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from example_plugin import plugin_loop, plugin_run
from fakes import EOS, FakePolicy
from test_literal import as_base, shifted
from test_trace_rl import collected as collected_plain

from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.trace_rl.algorithm import Collect
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.algorithms.trace_rl.states import plan_states
from dopsd.core.types import Rollout, Score
from dopsd.rollout.config import SamplingConfig
from verified_future.credited_trace_rl import algorithm as credited_trace_rl
from verified_future.credited_trace_rl.algorithm import credit_weight, credited
from verified_future.credited_trace_rl.config import CreditedTraceRlConfig
from verified_future.teacher import Verified, shown_positions, verified, verified_future

TOKENS = torch.tensor([1, 2, 3, 4, 5, 6, EOS, EOS])
STEPS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])  # blocks of two tokens, a step each


def moved(**changes: object):
    """A loop before its first collect, its policy no longer the base."""
    return shifted(plugin_loop(plugin_run("credited_trace_rl", group_size=3, **changes)))


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


def test_credit_by_hand():
    """gaps ln 1.1, ln 2 (clipped), 0 and -ln 2; half of the credit counts."""
    gap = torch.tensor([[math.log(1.1), math.log(2.0), 0.0, -math.log(2.0)]])
    up = credited(torch.tensor([2.0]), gap, 0.5, 0.2)
    assert up[0].tolist() == pytest.approx([2 * 1.05, 2 * 1.1, 2.0, 2 * 0.9])
    down = credited(torch.tensor([-2.0]), gap, 0.5, 0.2)  # what the teacher likes is blamed less
    expected = [-2 * (0.5 + 0.5 / 1.1), -2 * 0.9, -2.0, -2 * 1.1]
    assert down[0].tolist() == pytest.approx(expected)


def test_a_block_causal_base_is_refused():
    assert CreditedTraceRlConfig().unseen_by_blocks == ("credit", "run trace_rl")


def test_the_teacher_sees_each_state_once():
    plain, cost = (
        kind(passes=3).forwards(SamplingConfig()) for kind in (TraceRlConfig, CreditedTraceRlConfig)
    )
    assert cost == plain._replace(scored=plain.scored + plain.trained // 3)


def test_credit_falls_to_nothing_over_the_run():
    config = CreditedTraceRlConfig(credit=0.5, credit_decay=True)
    assert [credit_weight(config, n, 16) for n in (0, 4, 12, 20)] == [0.5, 0.375, 0.125, 0.0]
    assert credit_weight(CreditedTraceRlConfig(credit=0.5), 12, 16) == 0.5
    assert config.depends_on_length and not CreditedTraceRlConfig(credit=0.5).depends_on_length


def test_credit_does_not_fall_with_empty_collects(project, monkeypatch):
    """Two updates after seven collects of which some were empty."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(credited_trace_rl, "credit_weight", lambda _, *of: asked.append(of) or 0.5)
    loop = moved(credit=0.5, credit_decay=True)
    loop.update, loop.counters["collects"] = 2, 7
    while not loop.waiting:
        loop.collect()
    assert asked[-1] == (2, loop.settings.updates)


def trained(**changes: object):
    """Loss and gradients of the first batch, with ratios that are not 1; {}: of trace_rl."""
    if not changes:
        loop, batches = collected_plain(group_size=3)
    else:
        loop = moved(**changes)
        while not loop.waiting:
            loop.collect()
        batches = [batch for update in loop.waiting for batch in update]
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.01)
    output = loop.algorithm.loss(loop.policy, batches[0])
    output.total.backward()
    gradients = [p.grad for p in loop.parameters.values()]
    return loop, batches[0], output.total.detach(), gradients


def test_a_credit_of_weight_zero_is_trace_rl_bit_for_bit(project):
    _, _, plain, gradients = trained()
    loop, batch, total, others = trained(credit=0.0)
    assert batch.advantage.dim() == 2 and loop.gathered.means()["credited"] > 0
    assert torch.equal(plain, total)
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))
    _, credited_batch, changed, _ = trained(credit=1.0)
    assert not torch.equal(changed, plain)
    counted = batch.loss_mask & (batch.advantage != 0)
    ratio = credited_batch.advantage[counted] / batch.advantage[counted]
    assert ratio.min() >= 0.8 - 1e-6 and ratio.max() <= 1.2 + 1e-6 and ratio.std() > 0.01


def test_the_credit_is_that_of_the_base_with_the_future_less_the_old_policys(project):
    loop = moved(credit=0.5)
    algorithm, policy, problems = loop.algorithm, loop.policy, loop.order.of(0)
    groups, stats = algorithm.groups.sample(policy, problems, 0)
    rewarded = [item for group in groups for item in group]
    plan = algorithm._plan(policy, rewarded, 0)
    collect = Collect(rewarded, problems, 0, stats.metrics)
    batch = algorithm.prepared(policy, plan, collect).batch
    key = "credit", loop.seed, 0
    future = verified_future(policy, algorithm.context, plan, collect, key, 0.5)
    rows = (future.shown.any(1) & (batch.loss_mask.sum(1) > 1)).nonzero()[:, 0].tolist()
    assert len(rows) > 3
    masked = plan.batch.ids[:, -40:] == policy.mask_id
    assert ((future.completions == policy.mask_id) == masked & ~future.shown).all()
    for row in rows[:4]:
        real, mask = batch.mask[row], batch.loss_mask[row]
        with as_base(loop), torch.no_grad():
            ids = torch.cat([plan.batch.ids[row, :-40], future.completions[row]])
            hidden = policy.hidden(ids[real][None], None)
        logps = policy.head(hidden)[0, -40:].log_softmax(-1)
        q = logps.gather(1, batch.targets[row][:, None])[:, 0]
        a = plan.batch.advantage[row]
        w = (a.sign() * (q - batch.old_logps[row])).exp().clamp(0.8, 1.2)
        torch.testing.assert_close(
            batch.advantage[row][mask], (a * (0.5 + 0.5 * w))[mask], rtol=1e-4, atol=1e-5
        )


def test_a_wrong_rollout_gets_the_gold_answer_that_the_verifier_accepts(project):
    loop = moved()
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
