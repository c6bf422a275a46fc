"""When the answer moves the teacher too little, a collect of infill is one of trace_rl."""

from __future__ import annotations

import pytest
import torch
from fakes import FakePolicy
from test_d_opsd import coin, states
from test_literal import as_base, collected

from dopsd.algorithms.infill.lessons import answer_shift

TOLD = 3  # a token of the answer
REWARDS = {"kl_weight": 0.01, "shrink": 4, "updates_per_pass": 3, "group_size": 3}
GATED = {"group_size": 3, "updates_per_trajectory": 3, "least_shift": 1.0}


class Moved(FakePolicy):
    """At the first two places, a sequence with the answer's token is surer than one without."""

    def hidden(self, ids, attention_mask, kv_cache=None, cache_positions=None):
        is_told = (ids == TOLD).any(1)[:, None, None]
        flat = torch.tensor([coin(0.5)] * 4)
        sure = torch.tensor([coin(0.7), coin(0.9), coin(0.5), coin(0.5)])
        return torch.cat([torch.zeros(len(ids), 2, 2), torch.where(is_told, sure, flat)], 1)

    def head(self, hidden):
        return hidden


def told(*rows: int):
    """Three states with the candidates 0 and 1, 1 and 2, or 0; the answer is shown in some."""
    batch = states([1, 1, 1], [[0, 1], [1, 2], [0]], [[0], [1], [0]])
    ids = batch.teacher_ids.clone()
    ids[list(rows), 5] = TOLD
    return batch.with_tensors(teacher_ids=ids)


@pytest.mark.parametrize("at_once", [1, 8])
def test_the_shift_is_the_mean_total_variation_where_something_is_shown(at_once: int):
    shift = answer_shift(Moved(4), [[told(0)], [told(1)]], at_once)
    assert shift.positions == 4  # of the first state, 0 and 1, and of the second one, 1 and 2
    assert shift.total == pytest.approx(0.2 + 0.4 + 0.4 + 0.0)
    assert shift.mean == pytest.approx(0.25)


def test_where_nothing_is_shown_the_answer_moves_nothing():
    policy = Moved(4)
    assert answer_shift(policy, [[told()], []], 8).mean == 0 == answer_shift(policy, [], 8).mean


def batches(method: str, **changes: object):
    loop, _ = collected(method, **changes)
    return loop, [batch for update in loop.waiting for batch in update]


def assert_equal(first, second) -> None:
    assert len(first) == len(second) == 3
    for a, b in zip(first, second, strict=True):
        assert type(a) is type(b)
        for name, value in a.tensors().items():
            assert torch.equal(value, b.tensors()[name]), name


def test_below_the_least_shift_a_collect_is_that_of_trace_rl_bit_for_bit(project):
    closed, ours = batches("infill", **GATED)
    plain, theirs = batches("trace_rl", **REWARDS)
    assert_equal(ours, theirs)
    assert closed.counters == plain.counters  # the teacher's rollouts are among the group's
    for a, b in zip(ours, theirs, strict=True):
        pairs = (closed, a), (plain, b)
        totals = [loop.algorithm.loss(loop.policy, x).total for loop, x in pairs]
        assert torch.equal(*totals) and totals[0] != 0


def test_above_the_least_shift_a_collect_is_that_of_infill_bit_for_bit(project):
    open_, ours = batches("infill", **GATED | {"least_shift": 1e-9})
    plain, theirs = batches("infill", updates_per_trajectory=3)
    assert_equal(ours, theirs)
    assert open_.counters == plain.counters


def test_what_the_student_has_learnt_does_not_change_the_shift(project):
    """The base is the teacher: by hand at every candidate of the states, with LoRA at zero."""
    loop, found = batches("infill", updates_per_trajectory=3)
    measured = answer_shift(loop.policy, [found], 5)
    kept = [i for i in range(loop.policy.vocabulary) if i not in loop.policy.suppress_tokens]
    total, positions = 0.0, 0

    def predicted(ids, mask):
        logits = loop.policy.head(loop.policy.hidden(ids[mask][None], None))
        return logits[0, -40:, kept].softmax(-1)

    with as_base(loop):
        for batch in found:
            for row in range(len(batch)):
                if torch.equal(batch.teacher_ids[row], batch.student_ids[row]):
                    continue
                mask, places = batch.student_mask[row], batch.candidates[row]
                sides = batch.teacher_ids[row], batch.student_ids[row]
                q, q0 = (predicted(ids, mask) for ids in sides)
                total += (q - q0)[places].abs().sum().item() / 2
                positions += int(places.sum())
    assert measured.positions == positions > 0
    assert measured.total == pytest.approx(total, rel=1e-4) and measured.mean > 0
