"""Routed: TraceRL without its teacher; its loss as the formula has it; who learns from whom."""

from __future__ import annotations

import math

import pytest
import torch
from example_plugin import plugin_loop, plugin_run
from forward_counts import forwards
from test_literal import as_base, graded, gradients, moved, shifted
from torch import Tensor

from dopsd.algorithms.common.config import CROSS_ENTROPY_BYTES, DISTILLATION_BYTES
from dopsd.algorithms.common.groups import RewardedGroups
from dopsd.models.text import ChatText
from dopsd.rollout.answer_span import answer_span
from verified_future.routed import algorithm as routed
from verified_future.routed.algorithm import anchor, lesson, strength
from verified_future.routed.config import RoutedConfig

OFF = {"distil_weight": 0.0, "anchor_weight": 0.0}


def collected(method: str, **changes: object):
    """A loop after its first collect, and its batches."""
    if method == "routed":
        loop = shifted(plugin_loop(plugin_run(method, group_size=3, **changes)))
    else:
        loop = moved(method, group_size=3, **changes)
    while not loop.waiting:
        loop.collect()
    return loop, [batch for update in loop.waiting for batch in update]


def trained(method: str, **changes: object):
    """Loss and gradients of all batches, with ratios that are not 1."""
    loop, batches = collected(method, **changes)
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.01)
    results = []
    for batch in batches:
        total = loop.algorithm.loss(loop.policy, batch).total
        results.append((total.detach(), gradients(loop, total)))
    return batches, results


def assert_equal(first: list, second: list) -> None:
    assert len(first) == len(second) > 1
    for (total, grads), (other, others) in zip(first, second, strict=True):
        assert torch.equal(total, other)
        assert all(torch.equal(value, others[name]) for name, value in grads.items())


def test_without_teacher_and_anchor_it_is_trace_rl_bit_for_bit(project):
    _, plain = trained("trace_rl", kl_weight=0.5)
    _, same = trained("routed", kl_weight=0.5, **OFF)
    assert_equal(plain, same)


def test_where_all_rollouts_are_right_nobody_is_told_and_it_is_trace_rl(project, monkeypatch):
    graded(monkeypatch, [1, 1, 1])
    _, plain = trained("trace_rl", kl_weight=0.0)
    settings = {"teach": "wrong", "distil_weight": 1.0, "anchor_weight": 0.0}
    _, same = trained("routed", **settings)
    assert_equal(plain, same)


def test_where_beta_is_0_wrong_rollouts_learn_by_the_policy_gradient(project, monkeypatch):
    graded(monkeypatch, [0, 1, 0])
    monkeypatch.setattr(routed, "strength", lambda *_: 0.0)
    _, plain = trained("trace_rl", kl_weight=0.0)
    _, same = trained("routed", teach="wrong", anchor_weight=0.0)
    assert_equal(plain, same)


@pytest.mark.parametrize("confident", [None, 0.0])  # 0: also predict all other masked tokens
def test_loss_and_gradient_are_those_of_the_literal_formula(project, confident):
    """beta D scaled to 0.05 where A > 0 but for tokens shown, the gain, and the anchor."""
    weights = {"distil_weight": 2.0, "distil_warmup": 0.0, "anchor_weight": 0.5}
    loop, (batch, *_) = collected("routed", clip=0.05, confident=confident, **weights)
    beta = 2.0 * (batch.distil_weight > 0)
    assert torch.equal(batch.distil_weight, beta) and 0 < (beta > 0).sum() < len(batch)
    assert (batch.advantage[beta > 0] > 0).all()
    before, policy = batch.old_logps.clone(), loop.policy
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.01)
    kept = [i for i in range(policy.vocabulary) if i not in policy.suppress_tokens]

    def logits(ids, mask):
        return policy.head(policy.hidden(ids[mask][None], None))[0, -40:]

    with as_base(loop):
        seen = zip(batch.teacher_ids, batch.teacher_mask, strict=True)
        teachers = [logits(*row)[:, kept].log_softmax(-1) for row in seen]
        bases = [logits(*row).log_softmax(-1) for row in zip(batch.ids, batch.mask, strict=True)]
    shown = batch.teacher_ids[:, -40:] != batch.ids[:, -40:]
    assert (shown & batch.loss_mask)[beta > 0].any() == (confident is not None)
    literal, scaled, measured = torch.zeros(()), 0, []
    for row in range(len(batch)):
        now, a = logits(batch.ids[row], batch.mask[row]), batch.advantage[row]
        terms = []
        for place in batch.loss_mask[row].nonzero()[:, 0].tolist():
            token = batch.targets[row, place]
            logp, base = now[place].log_softmax(-1)[token], bases[row][place, token]
            r = (logp - before[row, place]).exp()
            term = 0.25 * (logp - base) ** 2 - torch.minimum(r * a, r.clamp(0.8, 1.2) * a)
            if beta[row] and not shown[row, place]:
                p, q = now[place, kept].log_softmax(-1), teachers[row][place]
                d = (p.exp() * (p - q)).sum()
                measured.append(d.item())
                g = min(1.0, 0.05 / d.item())
                scaled += g < 1
                term = term + 2.0 * g * d
            terms.append(term)
        literal = literal + sum(terms) / len(terms)
    assert scaled > 0
    output = loop.algorithm.loss(policy, batch)
    found, figures = output.total, output.metrics.means()
    assert found.item() == pytest.approx(literal.item(), rel=1e-4, abs=1e-4)
    assert figures["divergence"] == pytest.approx(sum(measured) / len(measured), rel=1e-4)
    assert figures["scaled_positions"] == pytest.approx(scaled / len(measured), rel=1e-4)
    ours, theirs = gradients(loop, found), gradients(loop, literal)
    assert max(value.abs().max() for value in theirs.values()) > 1e-3
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_a_wrong_rollout_learns_from_the_gold_answer_and_a_right_sibling_alone(
    project, monkeypatch
):
    """The second rollout of each group is right. The toy's answers stand where they should."""
    graded(monkeypatch, [0, 1, 0])
    loop, batches = collected(
        "routed", teach="wrong", distil_warmup=0.0, distil_weight=1.0, shrink=2, updates_per_pass=1
    )
    (batch,), policy = batches, loop.policy
    is_told = batch.policy_weight == 0
    assert torch.equal(batch.distil_weight > 0, is_told) and 0 < is_told.sum() < len(batch)
    for row in range(len(batch)):
        told = policy.text.decode(batch.teacher_ids[row, :-40][batch.teacher_mask[row, :-40]])
        asked = policy.text.decode(batch.ids[row, :-40][batch.mask[row, :-40]])
        student, teacher = batch.ids[row, -40:], batch.teacher_ids[row, -40:]
        shown = student != teacher
        if not is_told[row]:
            assert told == asked
            continue
        assert len(told) > len(asked) and told.startswith(asked[:16])
        assert shown.any() and (student[shown] == policy.mask_id).all()
        (problem,) = [p for p in loop.problems if p.prompt in asked]
        start = answer_span(policy.text, batch.targets[row], policy.eos_id).start
        gold = policy.text.tokens(problem.answer)
        for place in shown.nonzero()[:, 0].tolist():
            assert teacher[place] == gold[place - start] and place >= start
    found = loop.algorithm.loss(policy, batch)
    other = batch.with_tensors(advantage=torch.where(is_told, 9.0, batch.advantage))
    assert torch.equal(loop.algorithm.loss(policy, other).total, found.total)  # no gain of theirs
    figures = found.metrics.means()
    assert 0 < figures["shared_mass"] < 1 and figures["divergence"] > 0


def test_with_teach_all_every_state_with_a_known_future_is_taught_and_keeps_its_gain(
    project, monkeypatch
):
    """The second rollout of each group is right: states of wrong ones are taught as well."""
    graded(monkeypatch, [0, 1, 0])
    settings = {"distil_warmup": 0.0, "distil_weight": 1.0, "shrink": 2, "updates_per_pass": 1}
    _, (batch,) = collected("routed", teach="all", **settings)
    shown = (batch.teacher_ids[:, -40:] != batch.ids[:, -40:]).any(1)
    assert torch.equal(batch.distil_weight > 0, shown) and 0 < shown.sum() < len(batch)
    assert (batch.advantage[shown] < 0).any() and (batch.policy_weight == 1).all()


def test_beta_rises_and_falls_by_hand():
    """16 updates; it rises over the first 4, and falls over the other 12."""
    config = RoutedConfig(distil_weight=2.0, distil_warmup=0.25)
    found = [strength(config, update, 16) for update in (0, 4, 8, 12)]
    assert found == pytest.approx([2 / 4, 2.0, 2 * 8 / 12, 2 * 4 / 12])
    constant = config.model_copy(update={"distil_decay": False, "distil_warmup": 0.0})
    assert [strength(constant, update, 16) for update in (0, 12)] == [2.0, 2.0]
    assert config.depends_on_length and not constant.depends_on_length


def test_beta_follows_the_updates_that_were_made(project):
    """Two updates of a run of four, after seven collects of which some were empty."""
    run = plugin_run("routed", group_size=3, distil_weight=2.0, distil_warmup=0.0)
    loop = shifted(plugin_loop(run))
    loop.update, loop.counters["collects"] = 2, 7  # as after a resume, too
    while not loop.waiting:
        loop.collect()
    weights = torch.cat([batch.distil_weight for (batch,) in loop.waiting if batch])
    assert loop.settings.updates == 4 and set(weights.tolist()) == {0.0, 1.0}


def test_confidence_of_the_teacher_and_the_anchor_by_hand():
    """An even teacher weighs 1/e, a sure one 1."""
    student = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    teacher = torch.tensor([[0.5, 0.5], [1 - 1e-6, 1e-6]]).log()
    plain = lesson(student, teacher, RoutedConfig(clip=None)).loss
    weighed = lesson(student, teacher, RoutedConfig(clip=None, by_confidence=True)).loss
    assert (weighed / plain).tolist() == pytest.approx([math.exp(-1), 1.0], abs=1e-4)
    gaps = torch.tensor([[0.2, -0.4, 0.0]])
    mask = torch.tensor([[True, True, False]])
    found = anchor(gaps, torch.zeros(1, 3), mask)
    assert found.tolist() == pytest.approx([(0.02 + 0.08) / 2])


def test_forwards_and_logits_are_those_that_it_says(project, monkeypatch):
    """Nothing is left out; the teacher sees each state once in the loss."""
    run = plugin_run("routed", group_size=2)
    loop, problems = plugin_loop(run), run.train.prompts_per_collect
    loop.policy.suppress_tokens = [*loop.policy.suppress_tokens, loop.policy.eos_id]
    monkeypatch.setattr(RewardedGroups, "_rewards", lambda *_: ([0.0, 1.0], [False, True]))
    said, heads, head = run.algorithm.forwards(run.sampling), [], loop.policy.head
    with torch.no_grad():
        collects = forwards(loop.policy, lambda: loop.collect())
    assert collects == problems * (said.rollouts * run.sampling.steps + said.scored - said.trained)
    monkeypatch.setattr(
        loop.policy, "head", lambda h: heads.append(h.shape[:-1].numel()) or head(h)
    )
    rows = [row for update in loop.waiting for batch in update for row in batch.split(1)]
    trained = sum(
        forwards(loop.policy, lambda r=row: loop.algorithm.loss(loop.policy, r)) for row in rows
    )
    assert trained == 2 * problems * said.trained
    both = DISTILLATION_BYTES + CROSS_ENTROPY_BYTES
    assert max(heads) == run.algorithm.logit_bytes(run.sampling) / both


def test_a_block_causal_base_is_refused_but_without_the_teacher():
    assert RoutedConfig().unseen_by_blocks == ("distil_weight", "set it to 0")
    assert RoutedConfig(distil_weight=0.0).unseen_by_blocks is None


def test_whole_completions_are_checked_where_rewards_read_them(project, monkeypatch):
    read: list[bool] = []
    decode = ChatText.decode

    def reading(text: ChatText, ids: Tensor, after_eos: bool = False, special: bool = True) -> str:
        read.extend([after_eos] * (not special))
        return decode(text, ids, after_eos, special)

    monkeypatch.setattr(ChatText, "decode", reading)
    loop = plugin_loop(plugin_run("routed", {"sampling__text_after_eos": True}, distil_weight=0.5))
    while not loop.waiting:
        loop.collect()
    assert len(read) > loop.counters["rollouts"] and all(read)  # and those with a right answer
