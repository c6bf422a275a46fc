"""SPG: both bounds by hand, masks as they are drawn, the loss as the formula has it, its cost."""

from __future__ import annotations

from math import log
from types import SimpleNamespace

import pytest
import torch
from test_literal import assert_same, collected, logps, moved

from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.spg.algorithm import chosen_blocks, completion_masks, lower_bound, upper_bound
from dopsd.core.errors import DopsdError


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_with_all_tokens_masked_and_p_constant_both_bounds_are_its_logarithm(beta: float):
    logps, loss_mask = torch.full((1, 2, 5), log(0.3)), torch.ones(1, 2, 5, dtype=torch.bool)
    assert lower_bound(logps, loss_mask).item() == pytest.approx(log(0.3))
    found = upper_bound(logps, loss_mask, torch.tensor([5.0]), beta)
    assert found.item() == pytest.approx(log(0.3))


def test_bounds_by_hand():
    """The first mask hides one of three tokens, t = 1/3, the second two of them; none the last."""
    loss_mask = torch.tensor([[[True, False, False], [True, True, False]]])
    logps = torch.tensor([[[0.5, 1, 1], [0.2, 0.4, 1]]]).log().requires_grad_()
    lower = lower_bound(logps, loss_mask)
    assert lower.item() == pytest.approx((log(0.5) + (log(0.2) + log(0.4)) / 2) / 2)
    one, two = (upper_bound(logps, loss_mask, torch.tensor([3.0]), b) for b in (1.0, 2.0))
    assert one.item() == pytest.approx((log((1.5 + 0.3) / 2) + log(0.6 / 2)) / 2)
    assert two.item() == pytest.approx((log((0.75 + 0.06) / 2) + log(0.24 / 2)) / 2 / 2)
    two.backward()  # of the first token: shares 0.75 and 0.06 of 0.81, of two tokens
    expected = [0.75 / 0.81 / 2, 0, 0, 0.06 / 0.81 / 2, 0.5, 0]
    assert logps.grad.flatten().tolist() == pytest.approx(expected)


def test_a_block_is_hidden_in_part_and_what_follows_it_whole():
    """Blocks of four; the text ends in the third of four, after its second token."""
    n = 20_000
    completion_mask = (torch.arange(16) < 10).expand(n, 16)
    keys, middle = torch.arange(n)[:, None], torch.full((n, 1), 1)
    hidden = completion_masks(keys, completion_mask, middle, 4, 0.15)[:, 0]
    assert hidden[:, 8:].all()
    assert float(hidden[:, :4].float().mean()) == pytest.approx(0.15, abs=0.01)
    sizes = hidden[:, 4:8].sum(1)
    shares = [float((sizes == k).float().mean()) for k in range(5)]
    assert shares == pytest.approx([0, 0.25, 0.25, 0.25, 0.25], abs=0.01)
    last = completion_masks(keys, completion_mask, middle + 1, 4, 0.0)[:, 0]
    assert not last[:, :8].any() and last[:, 10:].all() and last[:, 8:10].any(1).all()
    anywhere = completion_masks(keys, completion_mask, middle * 0, 16, 0.0)[:, 0]
    assert float((anywhere.sum(1) == 7).float().mean()) == pytest.approx(0.1, abs=0.01)
    alone = completion_masks(keys[5:6], completion_mask[:1], middle[:1], 4, 0.15)
    assert torch.equal(alone[0, 0], hidden[5])


def test_draws_take_different_blocks_modulo_those_in_use():
    found = chosen_blocks(torch.arange(8000), torch.tensor([5]).expand(8000), 5, 2)
    assert (found[:, 0] != found[:, 1]).all()
    shares = [float((found[:, 0] == block).float().mean()) for block in range(5)]
    assert shares == pytest.approx([0.2] * 5, abs=0.02)
    few = chosen_blocks(torch.arange(8000), torch.tensor([2]).expand(8000), 5, 2)
    assert float((few == 0).float().mean()) == pytest.approx(0.6, abs=0.02)  # blocks 0, 2 and 4


def test_a_batch_hides_what_its_settings_say(project):
    loop, batch = collected("spg", group_size=4, iterations=2, prompt_mask=0.3)
    (first,), (second,) = loop.waiting
    length, mask_id = batch.targets.shape[1], loop.policy.mask_id
    is_mask = first.ids == mask_id
    counted = (torch.arange(length) < first.weight[:, None])[:, None]
    assert is_mask[..., -length:].masked_select(~counted).all()
    assert torch.equal(first.loss_mask, is_mask[..., -length:] & counted)
    prompts = is_mask[..., :-length].masked_select(first.mask[:, None, :-length])
    assert 0.2 < float(prompts.float().mean()) < 0.4
    assert not torch.equal(is_mask[:, 0, :-length], is_mask[:, 1, :-length])
    assert not torch.equal(first.loss_mask, second.loss_mask)  # each iteration has its own
    loop, batch = collected("spg", group_size=4, iterations=1, mask_earlier=False)
    assert all(
        mask[int(mask.nonzero()[0, 0] // 8 + 1) * 8 :].all()  # clean before its block
        for mask in (batch.ids[..., -length:] == mask_id).flatten(0, 1)
    )
    loop, batch = collected("spg", group_size=4, iterations=1, prompt_mask=1.0)
    shown = (batch.ids[..., -length:] != mask_id).unflatten(-1, (-1, 8)).any(-1)
    assert (shown.sum(-1) <= 1).all()  # at most its block: earlier ones hide with the prompt


def test_what_is_learnt_from_and_under_which_masks(project):
    """Advantages are rewards less the group's mean, and every collect has masks of its own."""
    loop, batch = collected("spg", group_size=4, iterations=1, mask="random")
    number = loop.counters["collects"] - 1
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(number), number)
    rewards = torch.tensor([[item.reward for item in group] for group in groups])
    expected = (rewards - rewards.mean(1, keepdim=True)).flatten()
    taught = [item for group in groups for item in group if item.advantage]
    assert batch.advantage.tolist() == pytest.approx(expected[expected != 0].tolist(), abs=1e-6)
    assert loop.counters["trajectories"] == len(batch) == len(taught) > 0
    assert not torch.equal(batch.loss_mask[:, 0], batch.loss_mask[:, 1])
    again, other = (loop.algorithm.batch(loop.policy, taught, n, 0) for n in (number, number + 1))
    assert torch.equal(again.ids, batch.ids) and not torch.equal(other.ids, batch.ids)


def test_every_block_with_a_counted_token_is_drawn_and_no_other(project):
    """Of 8 tokens one block of 8 is in use, and of 9 two."""
    algorithm, keys = moved("spg", mask_earlier=False).algorithm, torch.arange(50)

    def hidden(tokens: int) -> torch.Tensor:
        counted = (torch.arange(40) < tokens).expand(50, 40)
        return algorithm._hidden(keys, keys[:, None] + 50, counted)

    assert float(hidden(8)[..., 1:8].any(-1).float().mean()) > 0.9  # but for n = 1 at the first
    is_clean = ~hidden(9)[..., :8].any(-1)
    assert is_clean.any() and not is_clean.all()


@pytest.mark.parametrize(
    ("negative", "mask"),
    [("mix", "block"), ("mix", "random"), ("eubo", "block"), ("elbo", "random")],
)
def test_loss_and_gradient_are_those_of_the_literal_formula(project, negative: str, mask: str):
    given = {"negative": negative, "mask": mask, "mix_weight": 0.3, "eubo_beta": 1.5}
    loop, batch = collected("spg", group_size=3, iterations=1, **given)
    length, mask_id = batch.targets.shape[1], loop.policy.mask_id
    literal = torch.zeros(())
    for row in range(len(batch)):
        target, end = batch.targets[row], int(batch.weight[row])
        assert target.tolist().index(loop.policy.eos_id) + 1 == end
        is_text, lower, powers = batch.mask[row, :-length], torch.zeros(()), {}
        for ids in batch.ids[row]:
            found = logps(loop, ids[:-length][is_text], ids[-length:])
            places = [k for k in range(end) if ids[-length + k] == mask_id]
            lower = lower + sum(found[k, target[k]] for k in places) / len(places) / 2
            for k in places:
                power = found[k, target[k]].exp() ** 1.5 / (len(places) / end)
                powers[k] = powers.get(k, 0) + power / 2
        upper = sum(torch.log(power) for power in powers.values()) / len(powers) / 1.5
        share = {"mix": 0.3, "eubo": 1.0, "elbo": 0.0}[negative] * bool(batch.advantage[row] < 0)
        bound = share * upper + (1 - share) * lower
        literal = literal - batch.advantage[row] * bound * end
    assert (batch.advantage < 0).any() and (batch.advantage > 0).any()
    assert_same(loop, batch, literal)


def test_completions_without_an_advantage_or_without_a_bound_are_left_out(project):
    loop = moved("spg", negative="none")
    kinds = [(1.0, 0.0), (1.0, 0.5), (0.0, -0.5)]
    rewarded = [Rewarded(None, *kind) for kind in kinds]
    assert loop.algorithm.taught(rewarded) == rewarded[1:2]
    loop = moved("spg")
    assert loop.algorithm.taught(rewarded) == rewarded[1:]
    stats = SimpleNamespace(counters={"trajectories": 3}, metrics=None)
    loop.algorithm.groups = SimpleNamespace(sample=lambda *_: ([rewarded[:1]], stats))
    collected = loop.algorithm.collect(loop.policy, [], 0)
    assert not collected.updates and collected.stats.counters["trajectories"] == 0


def test_more_draws_than_blocks_are_refused(project):
    with pytest.raises(DopsdError, match="draws: 6 are more than the 5 blocks"):
        moved("spg", draws=6)
    moved("spg", draws=6, mask="random")
