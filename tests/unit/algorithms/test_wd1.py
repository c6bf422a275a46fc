"""wd1 on the tiny model: weights of a group by hand, the loss as the formula has it, its cost."""

from __future__ import annotations

import pytest
import torch
from test_literal import assert_same, collected, graded, logps

from dopsd.algorithms.common.groups import advantages
from dopsd.algorithms.wd1.algorithm import group_weights


def test_weights_by_hand():
    """Z is e^(2/3) + 2 e^(-1/3) = 3.380797, and of -A e^(-2/3) + 2 e^(1/3) = 3.304642."""
    found = group_weights([-1 / 3, 2 / 3, -1 / 3])
    assert found == pytest.approx([-0.210377, 0.420754, -0.210377], abs=2e-6)


def test_equal_rewards_weigh_nothing_and_a_constant_changes_nothing():
    assert group_weights(advantages([0.1] * 6, "mean")) == [0.0] * 6
    rewards = [0.0, 0.3, 1.0, 0.3]
    weights, moved = (group_weights(advantages([r + c for r in rewards], "mean")) for c in (0, 3))
    assert moved == pytest.approx(weights, abs=1e-12) and max(weights) > 0.2


def test_a_group_of_one_reward_is_not_trained_on(project, monkeypatch):
    """Of two problems the first is solved once in three attempts, and the second never."""
    graded(monkeypatch, [0, 1, 0], [0, 0, 0])
    loop, batch = collected("wd1", group_size=3, iterations=2, reward="correct")
    assert batch.weight.tolist() == pytest.approx([-0.210377, 0.420754, -0.210377], abs=2e-6)
    assert loop.counters["trajectories"] == 3 and loop.counters["rollouts"] == 6


def test_every_iteration_hides_the_completion_and_its_own_part_of_the_prompt(project):
    loop, _ = collected("wd1", group_size=4, iterations=2, prompt_mask=0.3)
    first, second = (batch for (batch,) in loop.waiting)
    length, mask_id = first.targets.shape[1], loop.policy.mask_id
    hidden = [(b.ids[:, :-length] == mask_id) & b.mask[:, :-length] for b in (first, second)]
    assert (first.ids[:, -length:] == mask_id).all() and not (first.targets == mask_id).any()
    assert not torch.equal(*hidden) and 0.1 < float(hidden[0].float().mean()) < 0.5


def test_loss_and_gradient_are_those_of_the_literal_formula(project):
    """-sum softmax(A) S + sum softmax(-A) S for each group, S through the first end of text."""
    loop, batch = collected("wd1", group_size=3, iterations=1)
    policy, prompts = loop.policy, batch.ids[:, : -batch.targets.shape[1]]
    problems = loop.order.of(loop.counters["collects"] - 1)
    with torch.no_grad():
        groups, _ = loop.algorithm.groups.sample(policy, problems, loop.counters["collects"] - 1)

    def summed(row: int) -> torch.Tensor:
        end = batch.targets[row].tolist().index(policy.eos_id) + 1
        asked = prompts[row][batch.mask[row, : prompts.shape[1]]]
        found = logps(loop, asked, torch.full_like(batch.targets[row], policy.mask_id))
        return sum(found[k, batch.targets[row, k]] for k in range(end))

    literal, row = torch.zeros(()), 0
    for group in groups:
        a = torch.tensor([item.reward for item in group], dtype=torch.float64)
        if a.min() == a.max():
            continue
        a = a - a.mean()
        for share in ((-a).softmax(0) - a.softmax(0)).tolist():
            if abs(share) > 1e-12:  # a rollout of the mean reward has no row
                literal, row = literal + share * summed(row), row + 1
    assert row == len(batch)
    assert_same(loop, batch, literal)
