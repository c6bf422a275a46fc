"""Pairs of complementary masks, and estimates of log-probabilities from them, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dopsd.algorithms.espo.algorithm import (
    CoupledViews,
    Draw,
    Espo,
    coupled_masks,
    masked_counts,
    ratio_terms,
    sequence_logps,
    squared_terms,
    token_estimates,
)
from dopsd.algorithms.espo.config import EspoConfig
from dopsd.core.types import Rollout


def test_counts_of_a_group_are_equally_far_apart_and_each_as_often():
    spread = torch.tensor([[0.3, 0.99]]).expand(4, 2)  # k = 1 and 3 of L + 1 = 4
    counts = masked_counts(spread, torch.arange(4), 4, torch.full((4, 1), 3))
    assert counts.T.tolist() == [[1, 2, 3, 0], [3, 0, 1, 2]]
    counts = masked_counts(spread[:2], torch.arange(2), 2, torch.full((2, 1), 3))
    assert counts.T.tolist() == [[1, 3], [3, 1]]
    many = masked_counts(
        torch.linspace(0.001, 0.999, 1000)[None], torch.zeros(1), 6, torch.tensor([[4]])
    )
    assert many.flatten().bincount().tolist() == [200] * 5


def test_halves_are_rounded_to_even_so_that_one_completion_masks_every_second_number():
    """Completion 3 of 6 is 128.5 from the first: k = 0 gives 128, 1 and 2 give 130."""
    every = (torch.arange(257) + 0.5)[None] / 257
    counts = masked_counts(every, torch.tensor([3]), 6, torch.tensor([[256]])).flatten()
    expected = [128, *sorted([*range(130, 257, 2)] * 2), *sorted([*range(1, 128, 2)] * 2)]
    assert counts.tolist() == expected
    long = 2**24  # in float32 2^24 + 1 is 2^24, and its half not 8388608.5
    spread = torch.tensor([[1.5 / (long + 1)]], dtype=torch.float64)  # k = 1
    assert masked_counts(spread, torch.tensor([1]), 2, torch.tensor([[long]])).item() == 8_388_610


@pytest.mark.parametrize("masks", ["count", "share"])
def test_a_mask_and_its_complement_predict_each_token_once_whatever_else_is_in_the_batch(masks):
    eligible = torch.tensor([[True] * 3 + [False], [True] * 4])
    draw = Draw(torch.tensor([7, 8]), torch.tensor([70, 80]), torch.tensor([1, 0]), 2)
    config = EspoConfig(masks=masks, draws=3)
    hidden, weight = coupled_masks(config, draw, eligible)
    assert hidden.shape == (2, 6, 4) and weight.shape == (2, 6)
    shown = hidden.unflatten(1, (3, 2)) & eligible[:, None, None]
    assert torch.equal(shown.sum(2), eligible[:, None].expand(2, 3, 4).long())
    assert hidden[0, :, 3].all()  # not eligible: always masked
    parts = (tensor[1:] for tensor in (draw.group_keys, draw.keys, draw.attempts))
    alone = coupled_masks(config, Draw(*parts, 2), eligible[1:])
    assert torch.equal(alone[0], hidden[1:]) and torch.equal(alone[1], weight[1:])
    if masks == "count":
        counts = shown.sum(-1)  # [2, 3, 2]
        lengths = torch.tensor([3, 4])[:, None, None]
        expected = torch.where(counts > 0, (lengths + 1) / counts, 0.0)
        torch.testing.assert_close(weight.unflatten(1, (3, 2)), expected)


@pytest.mark.parametrize("masks", ["count", "share"])
def test_draws_mask_other_places(masks):
    """With the same places the mask of one draw would lie within that of the other."""
    draw = Draw(torch.tensor([7]), torch.tensor([70]), torch.tensor([0]), 2)
    config = EspoConfig(masks=masks, draws=2)
    hidden, _ = coupled_masks(config, draw, torch.ones(1, 100, dtype=torch.bool))
    one, other = hidden[0, 0], hidden[0, 2]
    assert (one & ~other).any() and (other & ~one).any()


def test_shares_are_uniform_from_a_fifth_to_four_fifths_and_both_masks_weigh_one_over_theirs():
    """Of 1000 tokens the masked share is within 0.08 of t, 5 standard errors."""
    keys = torch.arange(1000)
    draw = Draw(keys, keys + 5000, torch.zeros(1000, dtype=torch.long), 2)
    eligible = torch.ones(1000, 1000, dtype=torch.bool)
    hidden, weight = coupled_masks(EspoConfig(masks="share", draws=1), draw, eligible)
    t, rest = (1 / weight).unbind(1)
    torch.testing.assert_close(t + rest, torch.ones(1000))
    assert (t.min().item(), t.max().item()) == pytest.approx((0.2, 0.8), abs=0.01)
    assert t.min() >= 0.2 and t.max() <= 0.8 and t.mean().item() == pytest.approx(0.5, abs=0.03)
    assert (hidden[:, 0].float().mean(1) - t).abs().max() < 0.08


def test_masks_follow_seed_update_iteration_problem_and_attempt():
    """Four completions in each of four places: each has masks of its own, each group a k."""
    tokens = torch.zeros(4)
    rollouts = [Rollout(p, a, tokens, tokens, tokens) for p in ("x", "y") for a in (0, 1)]

    def draw(seed: int, update: int, iteration: int) -> Draw:
        collector: Any = SimpleNamespace(seed=seed)
        return Espo(EspoConfig(), collector, 1)._draw(rollouts, update, iteration)

    draws = [draw(0, 0, 0), draw(1, 0, 0), draw(0, 1, 0), draw(0, 0, 1)]
    assert len(torch.cat([d.keys for d in draws]).unique()) == 16
    groups = torch.stack([d.group_keys for d in draws]).unflatten(1, (2, 2))
    assert torch.equal(groups[..., 0], groups[..., 1]) and len(groups.unique()) == 8


def test_full_masks_and_equal_weights():
    draw = Draw(*torch.arange(3)[:, None].expand(3, 1), 2)
    config = EspoConfig(objective="token", full_mask=True, token_weight="one", draws=1)
    hidden, weight = coupled_masks(config, draw, torch.ones(1, 4, dtype=torch.bool))
    assert hidden[0, -1].all() and hidden.shape == (1, 3, 4) and weight.tolist() == [[1, 1, 1]]


def test_the_logged_log_probability_is_a_mean_over_tokens_and_draws():
    """Two of four tokens are masked in each view: ln p is -0.5 in one draw, -1 in the other."""
    masks = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool).repeat(2, 1)[None]
    logps = masks * torch.tensor([-0.5, -0.5, -1.0, -1.0])[None, :, None]
    one, four = torch.ones(1), torch.ones(1, 4)
    batch = CoupledViews(masks, four, four, masks, 2 * four, one, logps, logps, one)
    assert ratio_terms(EspoConfig(), batch, logps).logp.tolist() == [-0.75]
    squared = EspoConfig(objective="squared")
    batch = batch.with_tensors(view_weight=four)
    assert squared_terms(squared, batch, logps).logp.tolist() == [-0.375]


def test_estimates_by_hand():
    """One of three tokens is masked: t = 1/4, and 3/4 - 1/4 for the others."""
    a, b, c = -0.1, -0.2, -0.4
    logps = torch.tensor([[[0.0, b, 0.0], [a, 0.0, c]]])
    weight = torch.tensor([[4.0, 2.0]])
    assert sequence_logps(logps, weight).tolist() == [[pytest.approx((4 * b + 2 * (a + c)) / 2)]]
    assert token_estimates(logps, weight)[0].tolist() == pytest.approx([2 * a, 4 * b, 2 * c])
    full = torch.cat([logps, torch.tensor([[[-1.0, -2.0, -3.0]]])], 1)
    found = token_estimates(full, torch.tensor([[4.0, 2.0, 1.0]]))
    assert found[0].tolist() == pytest.approx([a - 0.5, 2 * b - 1, c - 1.5])
