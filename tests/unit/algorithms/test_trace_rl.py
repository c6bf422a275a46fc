"""TraceRL on the sampler's own states, with CJ-GRPO and RLDF by their settings."""

from __future__ import annotations

import math

import pytest
import torch
from fakes import EOS, MASK, FakePolicy
from forward_counts import forwards
from test_literal import assert_same, graded, moved

from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.trace_rl.algorithm import state_losses
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.algorithms.trace_rl.states import (
    Trace,
    draw_states,
    group_steps,
    most_surprising,
    plan_states,
)
from dopsd.core.rng import fold_in, key_from
from dopsd.core.tensors import through_first
from dopsd.core.types import Rollout
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, StepInput, denoise, most_confident

STEPS = [0, 1, 0, 2, 5, 5, 4, 4]  # step 3 committed nothing
TOKENS = torch.tensor([1, 2, 3, 4, 5, EOS, EOS, EOS])
COUNTED = torch.arange(8) < 6


def traced(steps: list[int] = STEPS) -> Rollout:
    return Rollout("p", 0, torch.tensor([7, 7]), TOKENS, torch.tensor(steps))


def collected(is_moved: bool = True, **changes: object):
    """A loop after its first collect, and its batches."""
    loop = moved("trace_rl", is_moved, **changes)
    while not loop.waiting:
        loop.collect()
    return loop, [batch for update in loop.waiting for batch in update]


def places(mask: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in mask]


def test_noise_is_exact_whatever_the_section_says(project):
    loop = moved("trace_rl", sampling__gumbel_dtype="bfloat16")
    assert loop.algorithm.collector.sampling.gumbel_dtype == "float32"
    assert loop.algorithm.context.sampling.gumbel_dtype == "bfloat16"


def test_groups_of_two_steps_by_hand():
    """The steps that committed something are 0, 1 | 2, 4 | 5; padding is no target."""
    found = group_steps(traced(), COUNTED, 2)
    assert found.first.tolist() == [0, 2, 5]
    assert places(found.masked) == [list(range(8)), [3, 4, 5, 6, 7], [4, 5]]
    assert places(found.committed) == [[0, 1, 2], [3], [4, 5]]
    only_padding = group_steps(traced([0, 0, 0, 0, 0, 0, 1, 2]), COUNTED, 1)
    assert only_padding.first.tolist() == [0]


@pytest.mark.parametrize("shrink", [1, 2, 3, 8, 100])
def test_each_counted_token_is_a_target_once(shrink: int):
    rewarded = [Rewarded(traced(), 1.0, 0.5), Rewarded(traced([7, 6, 5, 4, 3, 2, 1, 0]), 0.0, -0.5)]
    plan = plan_states(FakePolicy(), rewarded, shrink, predicts_all=False)
    for index in (0, 1):
        times = plan.batch.loss_mask[plan.rollout == index].sum(0)
        assert torch.equal(times, COUNTED.long())
    seen = plan.batch.ids[:, 2:]
    assert (seen[plan.batch.loss_mask] == MASK).all()  # never shown


def test_inputs_are_the_states_that_the_sampler_saw_bit_for_bit():
    table = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
    policy = FakePolicy(table=table)
    (rollout,) = denoise(
        policy, [GenerationRequest("p", 0, torch.tensor([7, 7]), 5)], Decoding(8, 4, 4, 0.9)
    )
    seen = torch.cat(policy.seen)
    one = plan_states(policy, [Rewarded(rollout, 1.0, 1.0)], 1, predicts_all=True)
    assert torch.equal(one.batch.ids, seen[one.first]) and len(one.first) >= 1
    two = plan_states(policy, [Rewarded(rollout, 1.0, 1.0)], 2, predicts_all=False)
    assert torch.equal(two.batch.ids, seen[two.first])
    # and these states make the sampler commit the same tokens again
    for n, step in enumerate(one.first.tolist()):
        state, block = one.batch.ids[n : n + 1], 4 * (step // 2)
        slots = (state[0, 2 + block : 6 + block] == MASK).nonzero().T + 2 + block
        keys = fold_in(torch.tensor([5]), step)
        hidden = policy.hidden(state, None)[:, slots[0]]
        columns, tokens, _ = most_confident(
            policy, StepInput(hidden, slots, slots - 2, keys), 2, Decoding(8, 4, 4, 0.9)
        )
        assert torch.equal(rollout.completion_ids[columns[0] - 2], tokens[0])


def test_loss_of_a_state_by_hand():
    """Two tokens: ratios 2 (clipped to 1.2) and 1/2, advantage 1.5; the KL is summed."""
    loss_mask = torch.tensor([[True, True, False]])
    logps = torch.tensor([[math.log(0.4), math.log(0.1), 0.0]])
    old = torch.tensor([[math.log(0.2), math.log(0.2), 0.0]])
    ids = torch.zeros(1, 3, dtype=torch.long)
    batch = Trace(ids, ids == 0, ids, loss_mask, torch.tensor([1.5]), old, old, torch.ones(1))
    kl = [0.5 - math.log(0.5) - 1, 2 - math.log(2) - 1]
    gain = 1.5 * (1.2 + 0.5) / 2
    found = state_losses(logps, batch, TraceRlConfig())
    assert found.losses.tolist() == pytest.approx([0.01 * sum(kl) - gain])
    assert found.kl[0].tolist() == pytest.approx([*kl, 0.0])
    assert found.clipped.tolist() == [[1, 0, 0]]
    mean = state_losses(logps, batch, TraceRlConfig(kl_reduction="mean", kl_weight=1.0))
    assert mean.losses.tolist() == pytest.approx([sum(kl) / 2 - gain])


def test_states_are_drawn_by_surprise_and_confident_tokens_join():
    surprise, keys = torch.tensor([0.0, math.log(3.0)]), torch.arange(20_000)[:, None]
    keys = fold_in(keys + key_from("draws"), torch.arange(2))
    first = [int(draw_states(surprise, key, 1.0)[0]) for key in keys[:4000]]
    assert sum(first) / 4000 == pytest.approx(0.75, abs=0.02)  # softmax(0, ln 3)
    plan = plan_states(FakePolicy(), [Rewarded(traced(), 1.0, 1.0)], 1, predicts_all=True)
    assert places(plan.batch.loss_mask)[0] == [0, 1, 2, 3, 4, 5]  # without the padding
    surprise = torch.arange(1.0, 6.0)[: len(plan.first), None]  # of what each step committed
    logps = -torch.where(plan.committed, surprise, 99.0) * plan.batch.loss_mask
    plan = plan.with_batch(plan.batch.with_tensors(old_logps=logps))
    kept = most_surprising(plan, torch.tensor([3]), 2, 1e-3)  # nearly without noise
    assert kept.first.tolist() == plan.first[-2:].tolist()
    assert len(most_surprising(plan, torch.tensor([3]), 9, 1.0).first) == len(plan.first)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shrink": 1, "baseline": "mean", "kl_to": "base", "kl_reduction": "mean"},
        {
            "shrink": 1, "states": 4, "confident": 0.3, "reduction": "token",
            "kl_to": "base", "kl_reduction": "mean",
        },
    ],
    ids=["trace_rl", "cj_grpo", "rldf"],
)  # fmt: skip
def test_loss_and_gradient_are_those_of_the_literal_formula(project, changes: dict):
    loop, batches = collected(group_size=3, kl_weight=0.5, **changes)
    config, batch = loop.algorithm.config, batches[0]
    assert len(batches) == 2 and len(batch) > 3
    before = batch.old_logps.clone()
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.01)  # now neither ratio nor penalty is trivial
    length, total, drawn = batch.targets.shape[1], torch.zeros(()), 0
    for row in range(len(batch)):
        real = batch.mask[row]
        hidden = loop.policy.hidden(batch.ids[row][real][None], None)
        logps = loop.policy.head(hidden)[0, -length:].log_softmax(-1)
        gains, gaps = [], []
        for place in batch.loss_mask[row].nonzero()[:, 0].tolist():
            now = logps[place, batch.targets[row, place]]
            r, a = (now - before[row, place]).exp(), batch.advantage[row]
            gains.append(torch.minimum(r * a, r.clamp(0.8, 1.2) * a))
            gap = batch.ref_logps[row, place] - now
            gaps.append(gap.exp() - gap - 1)
        kl = sum(gaps) / (len(gaps) if config.kl_reduction == "mean" else 1)
        weight = len(gains) if config.reduction == "token" else 1
        assert batch.weight[row] == weight
        total, drawn = total + weight * (0.5 * kl - sum(gains) / len(gains)), drawn + len(gains)
    assert drawn == int(batch.loss_mask.sum())
    assert_same(loop, batch, total)


def test_what_is_likely_in_a_state_is_predicted_too(project):
    """The two tokens that the step committed, and every masked one of probability 0.6 or more."""
    _, batches = collected(group_size=3, shrink=1, confident=0.6)
    _, sure = collected(group_size=3, shrink=1, confident=1.0)  # no token is
    loop, committed = collected(group_size=3, shrink=1)
    for one, other in zip(sure, committed, strict=True):
        assert torch.equal(one.loss_mask, other.loss_mask)
    unlikely = 0
    for batch in batches:
        masked = batch.ids[:, -40:] == loop.policy.mask_id
        logits = loop.policy.head(loop.policy.hidden(batch.ids, batch.mask)[:, -40:])
        p = logits.softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
        counted = through_first(batch.targets, loop.policy.eos_id)
        assert (batch.loss_mask >= (masked & counted & (p > 0.601))).all()
        few = (batch.loss_mask & (p < 0.599)).sum(1)
        assert (few <= 2).all() and not (batch.loss_mask & ~(masked & counted)).any()
        assert torch.equal(batch.old_logps != 0, batch.loss_mask)
        unlikely += int((masked & counted & ~batch.loss_mask).sum())
    assert unlikely > 0


def test_old_values_are_the_policys_own_and_ref_values_the_bases(project):
    _, (batch, *_) = collected(group_size=3, kl_to="base")
    old, ref = batch.old_logps[batch.loss_mask], batch.ref_logps[batch.loss_mask]
    assert not torch.allclose(old, ref, atol=1e-3)
    same, (start, *_) = collected(is_moved=False, group_size=3, kl_to="base")
    assert torch.equal(start.old_logps, start.ref_logps)
    output = same.algorithm.loss(same.policy, start)
    assert output.metrics.means()["kl"] == pytest.approx(0, abs=1e-7)
    by_row = -start.advantage.sum().item()  # every ratio is 1
    assert output.total.item() == pytest.approx(by_row, abs=1e-4)


def test_flat_groups_and_means_out_of_bounds_are_dropped(project, monkeypatch):
    """The first puzzle's rewards are 0, 0, 1, the second's all equal."""
    graded(monkeypatch, [0, 0, 1], [1, 1, 1])
    loop, batches = collected(group_size=3, reward="correct")
    third = 3**-0.5
    found = {round(a, 4) for batch in batches for a in batch.advantage.tolist()}
    assert found == {round(-third, 4), round(2 * third, 4)}
    assert loop.counters["trajectories"] == 3 and loop.counters["rollouts"] == 6
    metrics = loop.gathered.means()
    assert metrics["kept_groups"] == metrics["flat_groups"] == 0.5
    loop.algorithm.config = loop.algorithm.config.model_copy(update={"most_mean_reward": 0.3})
    assert loop.algorithm.collect(loop.policy, loop.order.of(0), 0).updates == []


@pytest.mark.parametrize(
    ("least", "most", "is_kept"),
    [(1 / 3, 1 / 3, True), (0.34, None, False), (0.0, 0.33, False)],
)
def test_bounds_of_the_mean_reward_count_as_between(project, least, most, is_kept):
    algorithm = moved("trace_rl", least_mean_reward=least, most_mean_reward=most).algorithm
    assert algorithm._is_kept([Rewarded(traced(), r, 0.0) for r in (0.0, 0.0, 1.0)]) == is_kept


def test_the_defaults_are_those_of_the_published_code():
    config = TraceRlConfig()
    train = config.train
    assert (train.betas, train.weight_decay, train.learning_rate) == ([0.9, 0.999], 0.0, 1e-6)
    assert (config.updates_of_collect, train.warmup_updates) == (8, 0)


@pytest.mark.parametrize("count", [3, 6])
def test_updates_of_a_pass_share_all_states_and_each_holds_a_first_one(project, count: int):
    """The first state hides the whole completion; six updates share three rollouts."""
    _, (whole,) = collected(group_size=3, shrink=5, updates_per_pass=1)
    loop, parts = collected(group_size=3, shrink=5, updates_per_pass=count)
    shared = torch.cat([batch.ids for batch in parts])
    assert sorted(shared.tolist()) == sorted(whole.ids.tolist()) and len(parts) == count
    hidden = [(batch.ids[:, -40:] == loop.policy.mask_id).all(1).any().item() for batch in parts]
    assert hidden == [n % (count // 3) == 0 for n in range(count)]


def test_states_of_a_collect_are_its_own_draws_at_the_temperature(project):
    loop = moved("trace_rl", group_size=4, shrink=1, states=2, surprise_temperature=0.2)
    algorithm, policy = loop.algorithm, loop.policy
    groups, _ = algorithm.groups.sample(policy, loop.order.of(0), 0)
    items = [item for group in groups for item in group]
    drawn = [algorithm._plan(policy, items, update).first.tolist() for update in (0, 5)]
    algorithm.config = algorithm.config.model_copy(update={"states": 0})
    whole = algorithm._plan(policy, items, 0)
    assert drawn[0] != drawn[1] and len(whole.first) > len(drawn[0]) == 2 * len(items)
    for update, found in zip((0, 5), drawn, strict=True):
        names = [(i.rollout.problem_id, i.rollout.attempt) for i in items]
        keys = torch.tensor([key_from("trace_rl", loop.seed, update, *name) for name in names])
        assert most_surprising(whole, keys, 2, 0.2).first.tolist() == found


@pytest.mark.parametrize(("kl_to", "times"), [("old", 1), ("base", 2)])
def test_cost_in_forwards(project, kl_to: str, times: int):
    """Once for its old value, once a pass, and once for the base where the penalty is to it."""
    loop, batches = collected(group_size=2, shrink=5, passes=3, updates_per_pass=1, kl_to=kl_to)
    rows, losses = len(batches[0]), loop.algorithm.loss
    assert len(batches) == 3 and rows <= 4 * loop.counters["trajectories"]
    assert forwards(loop.policy, lambda: [losses(loop.policy, b) for b in batches]) == 3 * rows
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    rewarded = [item for group in groups if loop.algorithm._is_kept(group) for item in group]

    def planned() -> None:
        plan = loop.algorithm._plan(loop.policy, rewarded, 0)
        loop.algorithm._updates(loop.policy, plan, rewarded)

    assert forwards(loop.policy, planned) == times * rows
