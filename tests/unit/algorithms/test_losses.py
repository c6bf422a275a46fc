"""Divergences against literal formulas and autograd; cross-entropy by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dopsd.algorithms.common.losses import entropy, masked_cross_entropy, token_logps
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.divergence import Divergence, Terms, shared_mass, top_overlap
from dopsd.algorithms.diffu_grpo.algorithm import policy_gradient

KINDS = ["reverse_kl", "forward_kl", "jsd"]


def logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def literal_terms(kind: str, s: torch.Tensor, t: torch.Tensor, beta: float) -> torch.Tensor:
    """The formulas of the paper, term by term, for autograd."""
    p, q = s.softmax(-1), t.softmax(-1)
    if kind == "reverse_kl":
        return p * (p / q).log()
    if kind == "forward_kl":
        return q * (q / p).log()
    m = (1 - beta) * p + beta * q
    return beta * q * (q / m).log() + (1 - beta) * p * (p / m).log()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("top_k", [0, 5])
def test_value_and_gradient_are_those_of_the_literal_formula(kind, clip, top_k):
    ours, plain = logits(1, 6, 30).requires_grad_(), logits(1, 6, 30).requires_grad_()
    teacher = logits(2, 6, 30)
    value, unclipped, share = Divergence(kind, 0.3, top_k, clip)(ours, teacher)
    value.sum().backward()
    s, t = plain, teacher
    if top_k:
        best = teacher.topk(top_k, -1).indices
        s, t = plain.gather(-1, best), teacher.gather(-1, best)
    terms = literal_terms(kind, s, t, 0.3)
    expected = terms if clip is None else terms.clamp(max=clip)
    expected.sum().backward()
    assert torch.allclose(value, expected.sum(-1), atol=1e-5)
    assert torch.allclose(unclipped, terms.sum(-1), atol=1e-5)
    assert torch.allclose(ours.grad, plain.grad, atol=2e-6)
    assert torch.allclose(share, (terms > (clip or math.inf)).float().mean(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_distributions_give_exactly_no_loss_and_no_gradient(kind: str):
    s = logits(5, 3, 50).requires_grad_()
    value, _, clipped = Divergence(kind, 0.5, 0, 0.05)(s, s.detach())
    value.sum().backward()
    assert value.tolist() == clipped.tolist() == [0.0] * 3 and s.grad.abs().max().item() == 0.0


def test_certain_and_opposite_distributions_stay_finite():
    s, t = torch.tensor([[200.0, 0.0]]).requires_grad_(), torch.tensor([[0.0, 200.0]])
    value, _, _ = Divergence("jsd", 0.5)(s, t)
    value.sum().backward()
    assert value.item() == pytest.approx(math.log(2), abs=1e-5)
    assert torch.isfinite(s.grad).all()


def test_a_term_of_ones_own_is_differentiated_once_and_not_where_it_is_capped():
    class Squares(Divergence):
        def terms(self, s: torch.Tensor, t: torch.Tensor) -> Terms:
            return Terms((s - t) ** 2)

    s, t = torch.tensor([0.9, 0.1]).log().requires_grad_(), torch.tensor([0.5, 0.5]).log()
    Squares("squares", clip=0.5)(s, t)[0].backward()  # terms 0.35, and 2.59 capped
    assert torch.allclose(s.grad, 0.2 * math.log(1.8) * torch.tensor([1.0, -1.0]), atol=1e-5)


def test_reverse_kl_by_hand_and_clipping_caps_terms_from_above_only_so_it_can_go_negative():
    student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.8, 0.2]]).log()
    low, high = 0.5 * math.log(0.5 / 0.8), 0.5 * math.log(0.5 / 0.2)
    value, _, _ = Divergence("reverse_kl")(student, teacher)
    assert value.item() == pytest.approx(low + high, abs=1e-6)
    value, _, share = Divergence("reverse_kl", clip=0.05)(student, teacher)
    assert value.item() == pytest.approx(low + 0.05, abs=1e-6) and value.item() < 0
    assert share.item() == 0.5


def test_overlap_counts_shared_top_entries():
    student, teacher = torch.tensor([[[0.5, 0.5, 1e-9]], [[0.25, 0.5, 0.25]]]).log()
    assert shared_mass(student, teacher).item() == pytest.approx(0.75)
    tops = torch.tensor([[[3.0, 2.0, 1.0, 0.0]], [[3.0, 0.0, 1.0, 2.0]]])
    assert top_overlap(*tops, 2).item() == 0.5


def test_entropy_of_a_fair_coin_and_cross_entropy_by_hand():
    assert entropy(torch.zeros(1, 2)).item() == pytest.approx(math.log(2))
    logits = torch.tensor([[0.0, math.log(3.0)]])
    found = masked_cross_entropy(logits, torch.tensor([1])).item()
    assert found == pytest.approx(-math.log(0.75))


def test_policy_gradient_by_hand():
    """A good and a bad completion; ratios 2 and 0.25 leave the range 0.5 to 1.5."""
    old_logps = torch.full((2, 2), -1.0)
    logps = old_logps + torch.tensor([2.0, 0.25]).log()
    advantage, gap = torch.tensor([[2.0], [-2.0]]), 3 - math.log(3) - 1
    each, clipped, kl = policy_gradient(logps, old_logps, logps + math.log(3), advantage, 0.5, 0.04)
    # A = 2: min(4, 3), min(0.5, 1); A = -2: min(-4, -3), min(-0.5, -1)
    expected = 0.04 * gap - torch.tensor([[3.0, 0.5], [-4.0, -1.0]])
    torch.testing.assert_close(each, expected, rtol=0, atol=1e-6)
    assert clipped.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    torch.testing.assert_close(kl, torch.full((2, 2), gap), rtol=0, atol=1e-6)


def test_logps_are_those_of_the_completion_whatever_the_padding(fake_policy):
    fake_policy.table = logits(5, 8, 10)
    ids, places = torch.full((2, 11), 9), torch.arange(8)
    targets = torch.stack([places, 7 - places])
    found = token_logps(fake_policy, ids, torch.ones(2, 11, dtype=torch.bool), targets)
    expected = fake_policy.table.log_softmax(-1)[places, targets]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def descent(**clipped: object) -> list[float]:
    """Minus the gradient of reverse KL from student .6 .3 .1 to teacher .2 .7 .1, by logit."""
    student = torch.tensor([0.6, 0.3, 0.1]).log().requires_grad_()
    value, _, _ = Divergence("reverse_kl", **clipped)(student, torch.tensor([0.2, 0.7, 0.1]).log())
    value.backward()
    return (-student.grad).tolist()


def test_a_clip_by_position_keeps_the_direction_that_a_clip_by_entry_turns():
    """KL is .6 ln 3 + .3 ln(3/7) = .405. By entry the overrated first token even rises."""
    plain, by_entry = descent(), descent(clip=0.05)
    by_position = descent(clip=0.05, is_by_position=True)
    assert plain == pytest.approx([-0.4162, 0.3757, 0.0405], abs=1e-4)
    assert by_entry == pytest.approx([0.0875, -0.0021, -0.0854], abs=1e-4)
    assert by_position == pytest.approx([-0.0514, 0.0464, 0.0050], abs=1e-4)
    assert by_position == pytest.approx([0.05 / 0.4050 * d for d in plain], rel=1e-3)


def test_a_position_is_scaled_to_the_clip_and_counted():
    student = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]).log()
    teacher = torch.tensor([[0.2, 0.7, 0.1], [0.2, 0.7, 0.1]]).log()
    value, unclipped, share = Divergence("reverse_kl", clip=0.05, is_by_position=True)(
        student, teacher
    )
    assert value.tolist() == pytest.approx([0.05, 0.0]) and share.tolist() == [1.0, 0.0]
    assert unclipped.tolist() == pytest.approx([0.4050, 0.0], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [0, 5])
def test_a_large_clip_by_position_is_no_clip_bit_for_bit(kind: str, top_k: int):
    results = []
    for clipped in ({}, {"clip": 1e3, "is_by_position": True}):
        student = logits(1, 6, 30).requires_grad_()
        value, unclipped, share = Divergence(kind, 0.3, top_k, **clipped)(student, logits(2, 6, 30))
        value.sum().backward()
        results.append((value.detach(), unclipped.detach(), share, student.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("mode", "bound"),
    [("entry", (0.05, False)), ("position", (0.05, True)), ("none", (None, False))],
)
def test_the_mode_of_the_clip_chooses_what_it_bounds(mode: str, bound: tuple):
    found = Divergence.of(DOpsdConfig(clip=0.05, clip_mode=mode))
    assert (found.clip, found.is_by_position) == bound
