"""ESPO, GDSD and coupled-GRPO on the tiny model: the three losses as their formulas have them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from test_literal import ADVANTAGES, SQUARED, TOKEN, moved
from torch import Tensor

from dopsd.algorithms.espo.algorithm import _view_logps
from dopsd.algorithms.espo.config import EspoConfig

OBJECTIVES = pytest.mark.parametrize("switches", [{}, SQUARED, TOKEN], ids=["ratio", "gdsd", "cp"])


def collected(step: float = 0.0, **changes):
    """A loop whose policy moved by `step` since it collected; each row has an advantage."""
    loop = moved("espo", False, **{"group_size": 3, "iterations": 1} | changes)
    draw = torch.Generator().manual_seed(1)
    moves = {name: torch.randn(p.shape, generator=draw) for name, p in loop.parameters.items()}
    for name, p in loop.parameters.items():
        p.data += 2 * step * moves[name]
    loop.collect()
    for name, p in loop.parameters.items():
        p.data += step * moves[name].flip(0)
    return loop, loop.waiting[0][0].with_tensors(advantage=ADVANTAGES)


def loss(loop, batch) -> Tensor:
    return loop.algorithm.loss(loop.policy, batch).total


def gradient(loop, total: Tensor) -> Tensor:
    found = torch.autograd.grad(total, list(loop.parameters.values()))
    return torch.cat([value.flatten() for value in found])


@pytest.mark.parametrize("tail", ["window", "context", "counted"])
def test_tokens_after_the_end_count_are_shown_or_are_always_masked(project, tail: str):
    loop, batch = collected(tail=tail)
    is_end = batch.targets.eq(loop.policy.eos_id).long()
    ended = is_end.cumsum(1) - is_end == 0  # through the first end of text
    assert not ended.all()
    assert torch.equal(batch.counted, torch.ones_like(ended) if tail == "window" else ended)
    pairs = batch.loss_mask.unflatten(1, (-1, 2)).sum(2)
    assert torch.equal(pairs, batch.counted[:, None].expand_as(pairs).long())
    hidden = batch.ids[:, :, -ended.shape[1] :] == loop.policy.mask_id
    assert torch.equal(hidden & batch.counted[:, None], batch.loss_mask)
    after = hidden[(~ended)[:, None].expand_as(hidden)]
    assert bool(after.all()) == (tail == "counted") and after.any()


def test_shares_of_masked_tokens_are_spread_over_each_group_of_a_collect(project):
    """Three completions of 40 tokens mask k, k + 14 and k + 27, modulo 41; each group its k."""
    _, batch = collected(draws=1)
    counts = batch.loss_mask[:, 0].sum(-1).unflatten(0, (2, 3))
    assert ((counts - counts[:, :1]) % 41).tolist() == [[0, 14, 27]] * 2
    assert counts[0, 0] != counts[1, 0]


@OBJECTIVES
def test_a_loss_counts_completions_or_with_token_the_tokens_that_count(project, switches):
    loop, batch = collected(**switches)
    rows = [[*row, loop.policy.eos_id] for row in batch.targets.tolist()]
    lengths = [min(row.index(loop.policy.eos_id) + 1, 40) for row in rows]
    assert sum(lengths) < 6 * 40
    weights = lengths if switches == TOKEN else [1] * 6
    assert batch.weight.tolist() == weights
    assert loop.algorithm.loss(loop.policy, batch).metrics["logp"][1] == sum(weights)


def test_prompts_of_other_lengths_do_not_change_log_probabilities(project):
    """The prompt of the first completion is cut: padding takes the place of 12 tokens."""
    loop, _ = collected(step=0.03)
    groups, _ = loop.algorithm.groups.sample(loop.policy, loop.order.of(0), 0)
    cut, *others = groups[0]
    short = replace(cut.rollout, prompt_ids=cut.rollout.prompt_ids[12:])
    batch = loop.algorithm.batch(loop.policy, [replace(cut, rollout=short), *others], 0, 0)
    assert batch.mask.sum(1).diff().tolist() == [12, 0]
    alone = torch.stack([each(loop, batch, row) for row in range(3)])
    torch.testing.assert_close(batch.old_logps, alone, rtol=1e-4, atol=1e-5)


def test_at_the_first_inner_update_the_ratio_is_one(project):
    loop, batch = collected(reward="correct")
    assert loop.algorithm.groups.baseline == "loo" and torch.equal(batch.old_logps, batch.ref_logps)
    output = loop.algorithm.loss(loop.policy, batch)
    assert output.total.item() == pytest.approx(-batch.advantage.sum().item(), abs=1e-5)
    assert output.metrics["clip_ratio"] == (0.0, 6.0)
    assert output.metrics["kl"][0] == pytest.approx(0, abs=1e-8)


def test_the_first_gradient_of_squared_is_that_of_psi_times_the_advantage(project):
    loop, batch = collected(psi=3.0, draws=1, **SQUARED)
    total = loss(loop, batch)
    assert total.item() == pytest.approx((3 * batch.advantage).square().sum().item(), rel=1e-4)
    length = batch.loss_mask.shape[-1]
    d = 0.5 * _view_logps(loop.policy, batch, 64).sum((1, 2))  # half of both masks
    expected = gradient(loop, (-2 * 3.0 * batch.advantage * d / length).sum())
    torch.testing.assert_close(gradient(loop, total), expected, rtol=1e-3, atol=1e-5)


def each(loop, batch, row: int) -> Tensor:
    """ln p at the masked tokens that count, a view at a time and without padding: [N, G]."""
    length, views = batch.targets.shape[1], []
    for ids, loss_mask in zip(batch.ids[row], batch.loss_mask[row], strict=True):
        logits = loop.policy.head(loop.policy.hidden(ids[batch.mask[row]][None], None))
        logps = logits[0, -length:].log_softmax(-1)
        chosen = logps.gather(1, batch.targets[row][:, None])[:, 0]
        views.append(torch.where(loss_mask, chosen, 0.0))
    return torch.stack(views)


def literal(config: EspoConfig, batch, row: int, logps: Tensor) -> Tensor:
    """The loss of one completion with loops over draws and tokens."""
    a, e, psi = batch.advantage[row], config.clip_range, config.psi
    sources, weight = (logps, batch.old_logps[row], batch.ref_logps[row]), batch.view_weight[row]
    places = batch.loss_mask[row].any(0).nonzero().flatten().tolist()
    draws, size = range(config.draws), len(places)

    def halves(values: Tensor, n: int) -> Tensor:
        return (
            sum(weight[2 * n + side] * values[2 * n + side, k] for side in (0, 1) for k in places)
            / 2
        )

    if config.objective == "ratio":
        now, old, ref = (sum(halves(v, n) for n in draws) / len(draws) for v in sources)
        r = ((now - old) / size).exp()
        policy = -min(r * a, r.clamp(1 - e, 1 + e) * a)
        return policy + config.kl_weight * (now - ref) ** 2 / (2 * size)
    if config.objective == "squared":
        total = torch.zeros(())
        for n in draws:
            now, old, ref = (halves(v, n) for v in sources)
            before, after = (size, 1) if config.clamp_on == "mean" else (1, size)
            change = ((now - old) / before).clamp(math.log(1 - e), math.log(1 + e)) / after
            kl = (now - ref) ** 2 / (2 * size)
            total = total + (change - psi * a) ** 2 + config.kl_weight * kl / len(draws)
        return total
    total = torch.zeros(())
    for k in places:
        now, old, ref = (
            (v[-1, k] + sum(weight[i] * v[i, k] for i in range(2 * len(draws))) / len(draws)) / 2
            for v in sources
        )
        r = (now - old).exp()
        kl = (ref - now).exp() - (ref - now) - 1
        total = total - min(r * a, r.clamp(1 - e, 1 + e) * a) + config.kl_weight * kl
    return total


@pytest.mark.parametrize(
    "switches",
    [{}, SQUARED, SQUARED | {"clamp_on": "mean", "clip_range": 5e-3}, TOKEN],
    ids=["ratio", "gdsd", "gdsd-mean", "cp"],
)
def test_loss_and_gradient_are_those_of_the_literal_formula(project, switches):
    """Whether the clip takes effect differs between rows."""
    loop, batch = collected(step=0.03, kl_weight=0.5, psi=0.02, **{"clip_range": 0.01} | switches)
    assert (batch.old_logps - batch.ref_logps).abs().max() > 0.01
    rows = [each(loop, batch, row) for row in range(len(batch))]
    total = torch.stack(
        [literal(loop.algorithm.config, batch, i, logps) for i, logps in enumerate(rows)]
    ).sum()
    output = loop.algorithm.loss(loop.policy, batch)
    assert output.total.item() == pytest.approx(total.item(), rel=1e-4, abs=1e-5)
    clipped, count = output.metrics["clip_ratio"]
    assert 0 < clipped < count, (clipped, count)
    expected = gradient(loop, total)
    assert expected.norm() > 1e-3
    gap = (gradient(loop, output.total) - expected).norm()
    assert gap < 1e-4 * expected.norm()
