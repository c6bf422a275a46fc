"""JustGRPO on the tiny model: tokens scored from left to right, the loss as its formula."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import EOS, MASK, FakePolicy
from forward_counts import forwards
from test_literal import collected as collected_of
from test_literal import graded, gradients, moved

from dopsd.algorithms.common.config import Forwards
from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.just_grpo.algorithm import JustGrpo, batch_of, position_logits
from dopsd.algorithms.just_grpo.config import JustGrpoConfig
from dopsd.core.metrics import MetricSums
from dopsd.core.types import Rollout
from dopsd.rollout import sampler
from dopsd.rollout.collector import RolloutStats
from dopsd.training.trainer import Trainer

TOKENS = torch.tensor([1, 2, 3, 4, 5, EOS, EOS, EOS])


def rewarded(policy: FakePolicy, *advantages: float) -> list[Rewarded]:
    rollouts = [
        Rollout(str(i), 0, torch.tensor([7] * (i + 1)), TOKENS, torch.arange(8))
        for i in range(len(advantages))
    ]
    return [Rewarded(r, 0.0, a) for r, a in zip(rollouts, advantages, strict=True)]


def started(**changes: object) -> Trainer:
    return moved("just_grpo", **changes)


def collected(**changes: object):
    return collected_of("just_grpo", **changes)


def test_a_position_is_seen_after_the_tokens_before_it_and_rows_have_few_positions():
    policy = FakePolicy()
    places = [torch.arange(5), torch.tensor([2, 7])]
    batch = batch_of(policy, rewarded(policy, 1.0, -2.0), places, 3)
    assert batch.positions.tolist() == [[0, 1, 2], [3, 4, -1], [2, 7, -1]]
    assert batch.weight.tolist() == pytest.approx([0.6, 0.4, 1.0])  # 1 for each rollout
    assert batch.advantage.tolist() == [1, 1, -2] and batch.forwards == 3
    scored = position_logits(policy, batch, 8)
    (seen,) = policy.seen
    for row, place in zip(seen[:, 2:].tolist(), [0, 1, 2, 3, 4, 2, 7], strict=True):
        assert row == TOKENS[:place].tolist() + [MASK] * (8 - place)
    assert scored.rows.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert scored.targets.tolist() == [1, 2, 3, 4, 5, 3, EOS]


def test_prompts_of_other_lengths_do_not_change_logits(project):
    loop = started(group_size=2)
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    long = groups[0][0].rollout
    short = replace(long, prompt_ids=long.prompt_ids[12:])
    items = [Rewarded(r, 0.0, 1.0) for r in (short, long)]
    places = torch.tensor([0, 20, 39])
    together = batch_of(loop.policy, items, [places, places], 3)
    assert together.mask.sum(1).diff().tolist() == [12]
    found = position_logits(loop.policy, together, 40).logits
    alone = [batch_of(loop.policy, [item], [places], 3) for item in items]
    expected = torch.cat([position_logits(loop.policy, one, 40).logits for one in alone])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_summed_scores_are_the_samplers_own_log_probability(project, monkeypatch):
    """At temperature 1, with no token suppressed: the probability of each choice as it was made."""
    loop = started(group_size=2, after_end=True)
    loop.policy.suppress_tokens = []
    chances, propose = [], sampler.propose

    def recorded(*given):
        found = propose(*given)
        chances.append(found[1])  # [rollouts], of one position each
        return found

    monkeypatch.setattr(sampler, "propose", recorded)
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    monkeypatch.undo()
    rollouts = [item.rollout for group in groups for item in group]
    assert all(r.revealed_at.tolist() == list(range(40)) for r in rollouts)
    drawn = torch.stack(chances).log().sum(0)  # the order of the sampler's batch: by prompt length
    items = [Rewarded(r, 0.0, 1.0) for r in rollouts]
    totals = []
    for item in items:
        batch = batch_of(loop.policy, [item], [torch.arange(40)], 40)
        scored = position_logits(loop.policy, batch, 40)
        totals.append(scored.logits.log_softmax(-1).gather(1, scored.targets[:, None]).sum().item())
    assert sorted(totals) == pytest.approx(sorted(drawn.tolist()), rel=1e-4)
    assert len(set(totals)) == len(totals) == 4


def test_only_rollouts_with_an_advantage_are_scored_through_the_end_of_text(project):
    loop, batch = collected(group_size=3, after_end=False)
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    kept = [item for group in groups for item in group if item.advantage]
    assert loop.counters["trajectories"] == len(kept) > 0
    assert batch.weight.sum().item() == pytest.approx(len(kept))
    ends = [item.rollout.completion_ids.tolist() for item in kept]
    counts = [
        row.index(loop.policy.eos_id) + 1 if loop.policy.eos_id in row else 40 for row in ends
    ]
    assert int((batch.positions >= 0).sum()) == sum(counts) < 40 * len(kept)
    for group in groups:
        rewards = torch.tensor([item.reward for item in group])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        assert [item.advantage for item in group] == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_group_of_equal_rewards_is_not_scored(project, monkeypatch):
    """The first puzzle's rewards are 0, 0, 1, the second's all equal."""
    graded(monkeypatch, [0, 0, 1], [1, 1, 1])
    loop, batch = collected(group_size=3, reward="correct", after_end=True)
    assert loop.counters["trajectories"] == 3 and len(batch) == 3 * 40 / 8
    spread = 3**-0.5 + 1e-4
    expected = [-1 / 3 / spread] * 10 + [2 / 3 / spread] * 5
    assert batch.advantage.tolist() == pytest.approx(expected)


def test_the_least_certain_positions_by_hand():
    """One token leads by 1, 8, 3, 2, 9, 9, 9, 9; the smaller the lead, the less certain."""
    table = torch.zeros(8, 10)
    table[:, 1] = torch.tensor([1.0, 8, 3, 2, 9, 9, 9, 9])
    policy = FakePolicy(table=table)
    collector: Any = SimpleNamespace(sampling=SimpleNamespace(gen_length=8, batch_size=2))
    config = JustGrpoConfig(positions="entropy_top", entropy_share=0.4, after_end=False)
    batch = JustGrpo(config, collector, 4)._batch(policy, rewarded(policy, 1.0))
    assert batch.positions.tolist() == [[0, 2, 3, -1]]  # 3 of the 6 through the end of text
    assert sum(len(ids) for ids in policy.seen) == 6


def test_states_and_loss_of_the_steps_below_a_threshold_by_hand():
    """Position 1 and then 7 were sure; all others were committed from left to right."""
    table = torch.zeros(8, 10)
    table[torch.arange(8), TOKENS] = torch.arange(8) / 4
    order = torch.tensor([1, 0, 2, 3, 4, 6, 7, 5])
    marks = torch.tensor([1, 0, 1, 1, 1, 1, 1, 0], dtype=torch.bool)
    policy, collector = FakePolicy(table=table), SimpleNamespace(sampling=SimpleNamespace())
    collector.sampling.gen_length = 8
    rollout = Rollout("p", 0, torch.tensor([7]), TOKENS, order, marks)
    sure = replace(rollout, is_fallback=torch.zeros(8, dtype=torch.bool))  # nothing to learn
    config = JustGrpoConfig(positions="fallback", threshold=0.8, after_end=False)
    method = JustGrpo(config, collector, 8)  # type: ignore[arg-type]
    nothing = [Rewarded(sure, 0.0, 1.0)]
    assert len(method._batch(policy, nothing)) == 0
    method.groups.sample = lambda *given: ([nothing], RolloutStats({}, MetricSums()))  # type: ignore[method-assign]
    assert not method.collect(policy, [], 0).updates  # an empty collect, not a step on momentum
    batch = method._batch(policy, [Rewarded(r, 0.0, -2.0) for r in (sure, rollout)])
    assert batch.weight.tolist() == [1]
    output = method.loss(policy, batch)
    m = MASK
    assert policy.seen[0][:, 1:].tolist() == [
        [m, 2, m, m, m, m, m, m],
        [1, 2, m, m, m, m, m, m],
        [1, 2, 3, m, m, m, m, m],
        [1, 2, 3, 4, m, m, m, m],
        [1, 2, 3, 4, 5, m, m, EOS],
    ]
    logps = [x - math.log(math.exp(x) + 9) for x in (0, 0.5, 0.75, 1, 1.25)]
    assert output.total.item() == pytest.approx(2 * sum(logps) / 8)
    assert output.metrics["logp"] == (pytest.approx(sum(logps)), 5)  # a mean over positions


def test_scored_states_are_those_in_which_the_sampler_was_not_sure(project):
    """With no token suppressed: below the threshold on the marked positions, and only there."""
    loop = started(
        group_size=4, positions="fallback", threshold=0.5, temperature=0.8, after_end=True
    )
    loop.policy.suppress_tokens = []
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    items = [item for group in groups for item in group]
    marks = [item.rollout.is_fallback for item in items]
    for is_fallback in (True, False):
        places = [(mark == is_fallback).nonzero()[:, 0] for mark in marks]
        scored = position_logits(loop.policy, batch_of(loop.policy, items, places, 8), 40)
        p = scored.logits.softmax(-1).gather(1, scored.targets[:, None])
        assert len(p) > 40 and bool(((p < 0.5) == is_fallback).all())
    assert int((loop.algorithm._batch(loop.policy, items).positions >= 0).sum()) == sum(
        int(mark.sum()) for mark in marks
    )


def test_loss_and_gradient_are_those_of_the_literal_formula(project):
    loop, batch = collected(group_size=3)
    total, count = torch.zeros(()), 0
    for row in range(len(batch)):
        ids = batch.ids[row][batch.mask[row]]
        for place in batch.positions[row].tolist():
            if place < 0:
                continue
            seen = ids.clone()
            seen[len(ids) - 40 + place :] = loop.policy.mask_id
            logits = loop.policy.head(loop.policy.hidden(seen[None], None))[0, -40:][place]
            now = logits.log_softmax(-1)[ids[len(ids) - 40 + place]]
            r = (now - now.detach()).exp()  # the ratio of the published code: always 1
            a = batch.advantage[row]
            total, count = total - torch.minimum(r * a, r.clamp(0.8, 1.2) * a) / 40, count + 1
    assert count == int((batch.positions >= 0).sum())
    found = loop.algorithm.loss(loop.policy, batch).total
    ours, theirs = gradients(loop, found), gradients(loop, total)
    assert max(value.abs().max() for value in theirs.values()) > 1e-4
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=2e-5, msg=name)


def test_the_number_of_positions_in_a_row_changes_nothing(project):
    loop, batch = collected(group_size=3)
    together = loop.algorithm.loss(loop.policy, batch).total.item()
    loop.algorithm.at_once = 3
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    again = loop.algorithm._batch(loop.policy, [i for g in groups for i in g if i.advantage])
    assert again.positions.shape[1] == 3 and batch.positions.shape[1] == 8
    other = loop.algorithm.loss(loop.policy, again).total.item()
    assert other == pytest.approx(together, rel=1e-4, abs=1e-5)
    assert again.weight.sum().item() == pytest.approx(batch.weight.sum().item())


def test_the_least_certain_positions_cost_a_look_at_all_of_them(project):
    loop = started(group_size=2, after_end=True, positions="entropy_top", entropy_share=0.1)
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    items = [item for group in groups for item in group]
    batches: list = []
    batch = loop.algorithm._batch
    planned = forwards(loop.policy, lambda: batches.append(batch(loop.policy, items)))
    scored = forwards(loop.policy, lambda: loop.algorithm.loss(loop.policy, *batches))
    assert (planned / len(items), scored / len(items)) == (40, 4)  # a tenth of 40
    said = loop.algorithm.config.forwards(loop.algorithm.collector.sampling)
    assert said == Forwards(2, 2 * 40, 2 * 4)  # of a problem
