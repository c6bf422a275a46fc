"""Pairs of complementary masks, and estimates of log-probabilities from them, by hand."""

from __future__ import annotations

import pytest
import torch

from dopsd.algorithms.espo.config import EspoConfig
from dopsd.algorithms.espo.loss import sequence_logps, token_estimates
from dopsd.algorithms.espo.masks import Draw, coupled_masks, masked_counts


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
    """Completion 3 of 6 is 257 / 2 = 128.5 from the first: k = 0 gives 128, 1 and 2 give 130, and
    129 and 130 give 258 modulo 257.
    """
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


def test_full_masks_and_equal_weights():
    draw = Draw(*torch.arange(3)[:, None].expand(3, 1), 2)
    config = EspoConfig(objective="token", full_mask=True, token_weight="one", draws=1)
    hidden, weight = coupled_masks(config, draw, torch.ones(1, 4, dtype=torch.bool))
    assert hidden[0, -1].all() and hidden.shape == (1, 3, 4) and weight.tolist() == [[1, 1, 1]]


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
