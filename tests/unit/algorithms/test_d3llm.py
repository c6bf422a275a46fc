"""d3LLM: recorded orders, blocks and masks by hand, the loss as the formula has it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from test_literal import moved

from dopsd.algorithms.common.batch import Unmasking
from dopsd.algorithms.d3llm.algorithm import unmasking
from dopsd.algorithms.d3llm.recording import Recorder
from dopsd.cli.main import main


def loop_of(**changes):
    return moved("d3llm", False, **changes)


def test_what_is_recorded_is_written_once_and_read_by_the_next(project):
    loop = loop_of()
    loop.collect()
    recorder = loop.algorithm.recorder
    first = recorder.record(loop.problems[:2])[0]
    assert sorted(first.revealed_at) == list(range(40))  # one token a step, block after block
    assert [step // 8 for step in first.revealed_at] == [place // 8 for place in range(40)]
    assert 1 <= first.tries <= 2 and (first.tries == 2 or first.correct)
    lines = recorder.path.read_text().splitlines()
    assert main(["record"]) == 0
    now = recorder.path.read_text().splitlines()
    assert now[: len(lines)] == lines  # nothing is recorded twice
    again = Recorder(recorder.config, recorder.context)
    assert len(again.known) == 64 and again.known[first.problem_id] == first
    assert json.loads(lines[0])["value"]["problem_id"] in again.known


def test_the_cost_of_recordings_is_the_runs_own_whatever_others_recorded(project):
    loop = loop_of(train__updates=40)
    loop.collect()
    other = loop_of(train__updates=40)
    other.collect()
    assert loop.counters == other.counters and loop.counters["rollouts"] >= 2
    for name in ("seconds", "cpu_seconds"):
        own, borrowed = (one.gathered[f"time/borrowed_{name}"][0] for one in (loop, other))
        recorded = loop.algorithm.recorder.known.values()
        assert own == 0.0 and borrowed == sum(getattr(item, name) for item in recorded) > 0
    loop.counters["collects"] = 32  # of 64 problems, two a collect: the second epoch
    before = loop.counters["rollouts"]
    loop.collect()
    assert loop.counters["rollouts"] == before


def test_a_half_written_line_is_recorded_again(project):
    loop = loop_of()
    loop.collect()
    path = loop.algorithm.recorder.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = Recorder(loop.algorithm.config, loop.algorithm.context)
    assert len(again.known) == len(whole.splitlines()) - 1


def test_a_block_is_masked_in_the_recorded_order_and_all_after_it(project):
    method = loop_of(train__updates=3, first_block=4, last_block=8).algorithm
    steps = torch.tensor([[3, 0, 1, 2, 7, 4, 5, 6]])
    for key in range(20):
        inside, late, later = method.masks(steps, torch.tensor([8]), torch.tensor([key]), collect=0)
        start = 4 * int(inside[0, 4])
        assert inside[0].nonzero()[:, 0].tolist() == list(range(start, start + 4))
        assert later[0].tolist() == [place >= start + 4 for place in range(8)]
        count, by_age = int(late.sum()), [start + n for n in (0, 3, 2, 1)]  # written last: 0
        assert set(late[0].nonzero()[:, 0].tolist()) == set(by_age[:count]) and 1 <= count <= 3
    inside, late, _ = method.masks(steps, torch.tensor([8]), torch.tensor([0]), collect=2)
    assert inside.all() and int(late.sum()) == 6  # at the end: the whole of 8, 0.8 of it masked


def test_the_loss_is_the_formula(fake_policy):
    """(CE + CE of the complement + 2 x entropy at half temperature where right) / 4, by hand."""
    table = torch.zeros(8, 10)
    table[0, 3] = table[2, 5] = math.log(91)  # 0.91 there, 0.01 elsewhere
    fake_policy.table = table
    targets = torch.tensor([[3, 1, 5, 1, 8, 8, 8, 8]])
    flags = torch.zeros(2, 1, 8, dtype=torch.bool)
    flags[0, 0, [0, 1]] = flags[1, 0, 2] = True
    ids = torch.full((1, 10), 9)
    batch = Unmasking(ids, ids, ids > 0, targets, flags[0], flags[1], torch.ones(1))
    value, figures = unmasking(fake_policy, batch, 2.0, 0.5)
    cross = (-math.log(0.91) - math.log(0.1)) / 4 - math.log(0.91) / 2  # 2 positions, and 1
    sharp = 91**2 / (91**2 + 9)  # softmax of twice the logits
    rest = (1 - sharp) / 9
    entropy = -(sharp * math.log(sharp) + 9 * rest * math.log(rest))
    assert value.item() == pytest.approx((2 * cross + 2 * entropy) / 4, rel=1e-5)
    assert figures["cross_entropy"].item() == pytest.approx(cross, rel=1e-5)
    assert figures["entropy"].item() == pytest.approx(entropy, rel=1e-4)
