"""The method on hand-made logits and on the tiny model; the exact zero."""

from __future__ import annotations

import math

import pytest
import torch
from fakes import EOS, MASK, FakePolicy
from test_literal import collected, moved

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import BlockSchedule
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.tensors import pack, take
from dopsd.training.run_identity import settings_of
from dopsd.training.trainer import Trainer


def states(k: list, candidates: list, committed: list, weight: list | None = None) -> States:
    """States with these candidates and committed tokens by row."""
    rows = len(k)
    flags = torch.zeros(2, rows, 4, dtype=torch.bool)
    for kind, places in enumerate((candidates, committed)):
        for row, chosen in enumerate(places):
            flags[kind, row, chosen] = True
    ids, mask = torch.full((rows, 6), MASK), torch.ones(rows, 6, dtype=torch.bool)
    numbers = torch.tensor(k), *torch.zeros(2, rows, dtype=torch.long)
    return States(ids, mask, ids, mask, *flags, *numbers, torch.tensor(weight or [1.0] * rows))


class TwoFaced(FakePolicy):
    """The first forward is the teacher's, the second the student's, each with its own table."""

    def __init__(self, teacher: torch.Tensor, student: torch.Tensor) -> None:
        super().__init__(4, table=teacher)
        self.tables = [teacher, student]

    def hidden(self, ids, attention_mask, kv_cache=None, cache_positions=None):
        self.table = self.tables[len(self.seen) % 2]
        return super().hidden(ids, attention_mask)


def coin(p: float) -> list[float]:
    """Logits of a two-token vocabulary, as wide as the fake's table."""
    return [math.log(p), math.log(1 - p)]


TEACHER = torch.tensor([coin(0.5), coin(0.9), coin(0.6), coin(0.8)])
STUDENT = torch.tensor([coin(0.5)] * 4)


def kl(p: float) -> float:
    """Forward KL from a coin of share p to a fair one."""
    return p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5)


def method(**changes: object) -> DOpsd:
    plain = {"divergence": "forward_kl", "loss_vocabulary": "full", "clip": None}
    config = DOpsdConfig(**plain | {"teacher_confidence": "max_prob"} | changes)
    return DOpsd(config, None, BlockSchedule(4, (2, 2), MASK, EOS))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("selection", "candidates", "trained"),
    [
        ("teacher", [0, 1, 2, 3], (0.9, 0.8)),  # its surest
        ("teacher", [0, 2], (0.5, 0.6)),  # and nothing but candidates
        ("student", [0, 1, 2, 3], (0.5, 0.6)),  # what was committed
    ],
)
def test_two_candidates_are_trained_on(selection: str, candidates: list[int], trained: tuple):
    batch = states([2], [candidates], [[0, 2]])
    found = method(position_selection=selection).loss(TwoFaced(TEACHER, STUDENT), batch)
    assert found.total.item() == pytest.approx(sum(map(kl, trained)), abs=1e-6)


def test_max_logit_and_max_prob_can_choose_different_positions():
    shifted = TEACHER.clone()
    shifted[0] += 100.0  # a flat distribution at a great height
    batch = states([1], [[0, 1, 2, 3]], [[0]])
    for confidence, expected in (("max_logit", 0.0), ("max_prob", kl(0.9))):
        chosen = method(teacher_confidence=confidence)
        found = chosen.loss(TwoFaced(shifted, STUDENT), batch).total
        assert found.item() == pytest.approx(expected, abs=1e-5)


def test_tokens_that_cannot_be_sampled_win_neither_confidence_nor_loss():
    wide = torch.zeros(4, 10)
    wide[:, :2] = TEACHER
    wide[:, 2:9] = -30.0
    wide[0, MASK] = 50.0  # a mask that the teacher is sure of
    student = torch.full((4, 10), -30.0)
    student[:, :2] = STUDENT
    found = method().loss(TwoFaced(wide, student), states([1], [[0, 1, 2, 3]], [[0]]))
    assert found.total.item() == pytest.approx(kl(0.9), abs=1e-5)


def test_all_selection_takes_every_candidate_whatever_k_is():
    batch = states([1, 1], [[0, 1, 3], [2]], [[0], [2]])
    found = method(position_selection="all").loss(TwoFaced(TEACHER, STUDENT), batch)
    every = [kl(0.5), kl(0.9), kl(0.8), kl(0.6)]
    assert found.total.item() == pytest.approx(sum(every), abs=1e-6)
    assert found.metrics["divergence"] == (pytest.approx(sum(every), abs=1e-6), 4.0)


def test_mean_reduction_divides_by_the_positions_of_each_state():
    batch = states([2, 1], [[1, 3], [2]], [[1, 3], [2]])
    total = method(reduction="mean").loss(TwoFaced(TEACHER, STUDENT), batch).total.item()
    assert total == pytest.approx((kl(0.9) + kl(0.8)) / 2 + kl(0.6), abs=1e-6)


def test_states_are_weighted_and_uneven_k_is_not_padded_into_the_loss():
    batch = states([2, 1], [[1, 3], [2]], [[1, 3], [2]], weight=[0.25, 2.0])
    found = method().loss(TwoFaced(TEACHER, STUDENT), batch)
    assert found.total.item() == pytest.approx(0.25 * (kl(0.9) + kl(0.8)) + 2 * kl(0.6), abs=1e-6)
    summed = pytest.approx(kl(0.9) + kl(0.8) + kl(0.6), abs=1e-6)
    assert found.metrics["divergence"] == (summed, 3.0)


def test_pack_and_take_gather_the_flagged_rows_in_order():
    slots, valid = pack(torch.tensor([[False, True, False, True], [True, False, False, False]]), 2)
    assert slots[0].tolist() == [1, 3] and slots[1, 0].item() == 0
    assert valid.tolist() == [[True, True], [True, False]]
    assert take(torch.arange(4.0).view(1, 4, 1), slots[:1])[0, :, 0].tolist() == [1.0, 3.0]


def first_update(**changes):
    loop, batch = collected("d_opsd", False, **changes)
    found = loop.algorithm.loss(loop.policy, batch)
    found.total.backward()
    gradients = [p.grad.abs().max().item() for p in loop.parameters.values() if p.grad is not None]
    return loop, found, gradients


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jsd"])
def test_without_a_reveal_the_first_update_is_exactly_zero(project, divergence: str):
    _, found, gradients = first_update(reveal_ratio=0.0, divergence=divergence)
    assert found.total.item() == max(gradients) == 0.0


def test_an_empty_collect_is_skipped_or_counts_as_an_update(project):
    def advance(loop: Trainer) -> bool:
        loop.begin()
        if not loop.waiting:
            loop.collect()
        if loop.waiting:
            loop.step(loop.accumulate())
            return True
        return False

    hopeless = {"keep_threshold": 1.0, "attempts": 1}
    counted = {"skip_empty": False, "updates_per_trajectory": 4}
    loop = moved("d_opsd", False, train__warmup_updates=0, **counted, **hopeless)
    assert advance(loop)
    assert (loop.update, loop.counters["trajectories"]) == (1, 0)
    assert loop.waiting == [[], [], []]  # as many as the states of a kept rollout would make
    before = [p.detach().clone() for p in loop.parameters.values()]
    assert advance(loop)
    assert (loop.update, loop.counters["collects"]) == (2, 1)
    decay = 1 - loop.settings.learning_rate * loop.settings.weight_decay
    for old, new in zip(before, loop.parameters.values(), strict=True):
        assert torch.allclose(new, old * decay, rtol=1e-6)  # momentum is zero: nothing was learnt
    loop = moved("d_opsd", False, train__max_empty_collects=2, **hopeless)
    assert not advance(loop) and not advance(loop)
    with pytest.raises(DopsdError, match="3 collects in a row gave nothing"):
        advance(loop)
    assert loop.update == 0


@pytest.mark.parametrize("teacher", ["live", "ema"])
def test_the_teacher_follows_the_student_where_it_is_set_to(project, teacher: str):
    loop, _, _ = first_update(teacher=teacher, ema_decay=0.5)
    ids = loop.waiting[0][0].student_ids
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.1)
        student, base = loop.policy.hidden(ids, None), None
        with loop.policy.reference():
            base = loop.policy.hidden(ids, None)
        with loop.policy.teacher():
            before = loop.policy.hidden(ids, None)
        loop.policy.after_update()
        with loop.policy.teacher():
            after = loop.policy.hidden(ids, None)
        assert not torch.equal(student, base)
        assert torch.equal(before, student if teacher == "live" else base)
        assert torch.equal(after, student) if teacher == "live" else not torch.equal(after, before)
        assert torch.equal(loop.policy.hidden(ids, None), student)


def test_warm_up_by_ratio_counts_the_updates_of_an_epoch(project):
    size = {"train__prompts_per_collect": 2, "train__updates": 3}
    loop = moved("d_opsd", False, train={"warmup_ratio": 0.5}, updates_per_trajectory=4, **size)
    run = load_params().run("sudoku", "d_opsd", 0)
    assert settings_of(run)[0]["train"]["warmup_ratio"] == 0.5
    assert loop.settings.warmup_updates == len(loop.problems)  # half of 4 / 2 updates a problem


@pytest.mark.parametrize("dropout", [True, False])
def test_the_live_teacher_keeps_dropout_where_it_is_asked_to(project, dropout: bool):
    loop, _, _ = first_update(teacher="live", teacher_dropout=dropout, train__lora__dropout=0.5)
    ids = loop.waiting[0][0].student_ids
    loop.policy.core.train()
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.1)  # a new adapter computes nothing, with dropout or without
        with loop.policy.teacher():
            outputs = [loop.policy.hidden(ids, None) for _ in range(2)]
    assert torch.equal(*outputs) is not dropout
    assert loop.policy.core.training
