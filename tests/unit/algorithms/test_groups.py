"""Shared pieces of methods: batches, advantages, masks of a completion, clipped gains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import save_toy

from dopsd.algorithms.common.batch import Batch, MaskedTexts, PreferenceBatch, batch_from
from dopsd.algorithms.common.groups import advantages
from dopsd.algorithms.common.losses import clipped_gain
from dopsd.algorithms.common.views import Completions, Views, random_ranks, view_logps
from dopsd.core.types import Rollout
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("mean", [-1 / 3, 2 / 3, -1 / 3]),
        ("loo", [-1 / 2, 1, -1 / 2]),
        ("z", [-(3**-0.5), 2 * 3**-0.5, -(3**-0.5)]),  # the standard deviation is 3**-0.5
    ],
)
def test_advantages_by_hand(baseline: str, expected: list[float]):
    assert advantages([0, 1, 0], baseline) == pytest.approx(expected)
    for epsilon in (0.0, 1e-4):  # the sum of six 0.1 divided by 6 is not 0.1
        assert advantages([0.1] * 6, baseline, epsilon) == [0] * 6


def test_a_gain_is_clipped_only_where_that_lowers_it():
    ratio, advantage = torch.tensor([0.5, 2.0, 0.5, 2.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert clipped_gain(ratio, advantage, 0.8, 1.2).tolist() == pytest.approx([0.5, 1.2, -0.8, -2])


def test_ranks_take_eligible_positions_first():
    ranks = random_ranks(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([[True, False, True]]))
    assert ranks.tolist() == [[1, 2, 0]]


def test_prompt_masks_do_not_depend_on_padding(tmp_path: Path):
    save_toy(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    short, long = torch.arange(3, 8), torch.arange(3, 15)
    rollouts = [
        Rollout("a", i, p, torch.arange(3, 9), torch.arange(6)) for i, p in enumerate((short, long))
    ]
    keys = torch.tensor([[5, 6], [7, 8]])  # two views of each
    both = Completions.of(policy, rollouts).masked_prompts(keys, 0.5, policy.mask_id)
    alone = Completions.of(policy, rollouts[:1]).masked_prompts(keys[:1], 0.5, policy.mask_id)
    assert both.shape == (2, 2, 12) and torch.equal(both[0, :, -5:], alone[0])
    assert (both[0, :, :-5] == policy.eos_id).all() and (alone == policy.mask_id).any()
    assert not torch.equal(both[1, 0], both[1, 1])


def test_views_one_by_one_have_the_log_probabilities_and_gradients_of_all_at_once(tmp_path: Path):
    save_toy(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    policy.core.requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, 15, (2, 4), generator=generator)
    loss_mask = torch.rand(2, 3, 4, generator=generator) < 0.5
    ids = torch.where(loss_mask, policy.mask_id, targets[:, None])
    ids = torch.cat([torch.full((2, 3, 2), 4), ids], -1)
    found = []
    for most in (6, 1):
        policy.core.zero_grad()
        logps = view_logps(policy, Views(ids, None, targets, loss_mask), most)
        logps.sum().backward()
        found.append(
            [logps, *(p.grad.clone() for p in policy.core.parameters() if p.grad is not None)]
        )
    for together, alone in zip(*found, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    logits = policy.head(policy.hidden(ids[1, 2:], None))[0, 2:].log_softmax(-1)
    expected = logits.gather(1, targets[1, :, None])[:, 0] * loss_mask[1, 2]
    torch.testing.assert_close(found[0][0][1, 2], expected)


@dataclass(frozen=True)
class Advantages(Batch):
    """As a plug-in has it, in a package of its own."""

    advantage: Tensor
    weight: Tensor


def test_a_checkpoint_holds_batches_of_an_algorithms_own_class():
    batch = Advantages(torch.tensor([0.5, -0.5]), torch.ones(2))
    read = batch_from("Advantages", batch.tensors())
    assert isinstance(read, Advantages) and read.advantage.tolist() == [0.5, -0.5]


def test_a_sequence_is_as_long_as_the_ids_of_its_forward():
    ids, text, row = torch.zeros(1, 9), torch.zeros(1, 4), torch.ones(1)
    assert MaskedTexts(ids, ids, text, text, row, row).padded_length == 9
    pair = PreferenceBatch(
        *(torch.zeros(1, 5), torch.ones(1, 5), torch.zeros(1, 2, 4)),
        *(torch.zeros(1, 2, 3, 4), torch.ones(1, 2), torch.ones(1, 2), row),
    )
    assert (pair.padded_length, pair.forwards) == (5 + 4, 2 * 3)  # prompt and completion apart
    assert Advantages(row, row).padded_length == 1
