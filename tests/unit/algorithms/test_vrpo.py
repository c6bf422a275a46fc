"""VRPO on hand-made logits and on the tiny model: pairs, masks, the bound, the loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fakes import EOS
from hypothesis import given
from hypothesis import strategies as st

from dopsd.algorithms.common.batch import PreferenceBatch
from dopsd.algorithms.vrpo.algorithm import Vrpo, drawn, likelihood_bound, paired, preference
from dopsd.algorithms.vrpo.config import VrpoConfig
from dopsd.core.rng import key_from
from dopsd.core.types import Problem, Rollout, Score
from dopsd.rollout.collector import RolloutGroup


def tried(*scores: float) -> RolloutGroup:
    rollouts = tuple(Rollout("p", i, *torch.zeros(3, 1)) for i in range(len(scores)))
    marks = tuple(Score(None, score, score == 1.0) for score in scores)
    return RolloutGroup(Problem("p", "", ""), rollouts, marks)


def attempts_of(pair) -> tuple[int, int] | None:
    return pair and (pair[0].attempt, pair[1].attempt)


def test_the_best_is_paired_with_the_worst_and_only_right_with_wrong():
    assert attempts_of(paired(tried(0.0, 1.0, 1.0, 0.0), is_graded=False)) == (2, 0)
    assert paired(tried(1.0, 1.0), is_graded=False) is None
    assert paired(tried(0.0, 0.5), is_graded=False) is None  # a partial score is not right
    assert attempts_of(paired(tried(0.5, 0.25, 0.75), is_graded=True)) == (2, 1)


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_masks_take_one_to_all_of_the_counted_tokens_and_no_others(length: int, seed: int):
    completion_mask = (torch.arange(12) < length).expand(1, 2, 12)
    key = torch.arange(10).expand(1, 2, 10) + key_from("masks", seed)
    found = drawn(key, completion_mask)
    assert found.shape == (1, 2, 10, 12) and not (found & ~completion_mask[:, :, None]).any()
    assert int(found.sum(-1).min()) >= 1 and int(found.sum(-1).max()) <= length


def test_the_number_of_masked_tokens_is_uniform():
    completion_mask = torch.ones(1, 1, 4, dtype=torch.bool)
    found = drawn(torch.arange(40_000).view(1, 1, -1), completion_mask).sum(-1)
    shares = [float((found == n).float().mean()) for n in range(1, 5)]
    assert shares == pytest.approx([0.25] * 4, abs=0.01)


def test_bound_and_loss_by_hand(fake_policy):
    """Length 4 to the end of text: two masks, of 1 and of 2 tokens, weighted 4/1 and 4/2."""
    fake_policy.table = torch.zeros(8, 10)
    fake_policy.table[0, 3] = math.log(91)  # p(3 at 0) = 91/100; of other tokens there 1/100
    loss_mask = torch.zeros(1, 2, 2, 8, dtype=torch.bool)
    loss_mask[:, :, 0, 0] = True
    loss_mask[:, :, 1, [0, 1]] = True
    targets, prompt = torch.full((1, 2, 8), EOS), torch.tensor([[1, 2]])
    targets[0, :, :3] = torch.tensor([[3, 1, 2], [4, 1, 2]])
    lengths = torch.tensor([[4, 4]])
    batch = PreferenceBatch(
        prompt, prompt > 0, targets, loss_mask, lengths, torch.zeros(1, 2), torch.ones(1)
    )
    good, bad, other = math.log(0.91), math.log(0.01), math.log(0.1)
    bounds = likelihood_bound(fake_policy, batch, 4)
    after = fake_policy.seen[-1][:, 2 + 4 :]
    assert (after == fake_policy.mask_id).all()  # nothing tells where the text ends
    expected = [(4 * p + 2 * (p + other)) / 2 for p in (good, bad)]
    assert bounds[0].tolist() == pytest.approx(expected, rel=1e-5)
    loss, margin = preference(bounds, torch.tensor([[0.5, -0.5]]), 0.2)
    method = Vrpo(VrpoConfig(sft_weight=0.5), None, 4)
    moved = replace(batch, ref_bounds=torch.tensor([[0.5, -0.5]]))
    total = method.loss(fake_policy, moved).total.item()  # and half of the bound a token
    assert total == pytest.approx(loss.item() + 0.5 * -expected[0] / 4, rel=1e-5)
    by_hand = 0.2 * ((expected[0] - 0.5) - (expected[1] + 0.5))
    assert margin.item() == pytest.approx(by_hand, rel=1e-5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-by_hand)), rel=1e-5)


def test_masks_that_do_not_fit_at_once_are_computed_again_to_the_same_gradient(project):
    from dopsd.models.config import AdapterConfig, ModelConfig
    from dopsd.models.llm_policy import load_policy

    adapter = AdapterConfig(r=4, alpha=4, dropout=0.0)
    policy = load_policy(ModelConfig(path="base/sudoku", dtype="float32"), adapter, 0)
    draw = torch.Generator().manual_seed(0)
    loss_mask = torch.rand(2, 2, 5, 8, generator=draw) < 0.5
    loss_mask[..., 0] = True
    targets = torch.randint(3, 9, (2, 2, 8), generator=draw)
    prompt, lengths = torch.randint(3, 9, (2, 4), generator=draw), torch.full((2, 2), 8)
    batch = PreferenceBatch(
        prompt, prompt > 0, targets, loss_mask, lengths, torch.zeros(2, 2), torch.ones(2)
    )
    assert [[len(part) for part in batch.split(n)] for n in (20, 8)] == [[2], [1, 1]]
    found = []
    for most in (20, 8, 1):
        bounds = likelihood_bound(policy, batch, most)
        policy.core.zero_grad()
        (bounds * torch.tensor([1.0, -1.0])).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.trainable().values()])
        found.append((bounds.detach(), gradient))
    for bounds, gradient in found[1:]:
        torch.testing.assert_close(bounds, found[0][0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-6)
    assert found[0][1].abs().max() > 0
