"""Micro-batches: measured, halved, and the same gradient however many there are."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dopsd.algorithms.common.base import LossOutput
from dopsd.algorithms.common.batch import Batch
from dopsd.core.errors import DopsdError
from dopsd.core.metrics import MetricSums
from dopsd.distributed.process_group import SingleProcess, UnevenForwards
from dopsd.models import memory
from dopsd.training.config import AUTO, TrainConfig
from dopsd.training.grad_accumulation import MOST, MicroBatches, Probe, fitting
from dopsd.training.optim import adamw

CPU = torch.device("cpu")
GB = 10**9


@dataclass(frozen=True)
class Rows(Batch):
    x: Tensor  # [B, D]
    weight: Tensor  # [B]


class Linear:
    """Loss sum(w . x), so that w's gradient is the sum of the rows; memory for `room` rows."""

    def __init__(self, room: int = 1000, length: int = 3) -> None:
        self.w, self.room, self.sizes = torch.ones(length, requires_grad=True), room, []
        self.process_group, self.needs_lockstep = SingleProcess(), False
        self.forwards = UnevenForwards()

    def trainable(self) -> dict[str, Tensor]:
        return {"w": self.w}

    def release_memory(self) -> None:
        pass

    def loss(self, policy: object, batch: Rows) -> LossOutput:
        self.sizes.append(len(batch))
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("no room")
        torch.rand(1)  # as dropout would
        return LossOutput((batch.x @ self.w).sum(), MetricSums())


def rows(n: int, length: int = 3) -> Rows:
    return Rows(torch.arange(float(length) * n).view(n, length), torch.ones(n))


def test_a_line_through_two_peaks_says_how_many_fit():
    one, three = Probe(100, 10 * GB), Probe(300, 12 * GB)
    held = 8 * GB
    # 8 + 0.8 x 20 - 10 = 14 GB, at 0.01 GB each
    assert fitting(one, three, held, free=20 * GB) == 100 + 1400
    # what fits not even once is still tried
    assert fitting(one, three, held, free=2 * GB) == 100
    # a flat line: the first pass took 2 GB
    assert fitting(one, Probe(300, 10 * GB), held, free=20 * GB) == 100 + 700


def test_what_does_not_fit_is_halved_until_it_fits_and_the_gradient_is_whole(capsys):
    model, micro = Linear(room=4), MicroBatches(8, CPU)
    found = micro.gradients(model, model, [rows(8), rows(3)], 2.0)
    assert model.sizes == [8, 4, 4, 3]
    assert model.w.grad.tolist() == ((rows(8).x.sum(0) + rows(3).x.sum(0)) / 2).tolist()
    assert found["loss"][0] == float(rows(8).x.sum() + rows(3).x.sum()) / 2
    said = "out of memory at 8 states per pass; micro-batch reduced to 4"
    assert capsys.readouterr().err.count(said) == 1
    model.room, model.w.grad, model.sizes = 1, None, []
    micro.gradients(model, model, [rows(3)], 1.0)
    assert model.sizes == [3, 1, 1, 1]
    model.room = 0
    with pytest.raises(DopsdError, match="out of memory at 1 state per pass; run") as caught:
        micro.gradients(model, model, [rows(8)], 2.0)
    assert caught.value.exit_code == 1 and "gradient_checkpointing=true" in str(caught.value)


def test_a_setting_above_what_a_batch_has_is_halved_from_what_was_passed():
    model, micro = Linear(room=4), MicroBatches(64, CPU)
    micro.gradients(model, model, [rows(6)], 1.0)
    assert model.sizes == [6, 3, 3]


def test_measured_memory_holds_more_short_rows_than_long_ones_and_at_least_one():
    micro = MicroBatches(AUTO, CPU)
    micro.size, micro.tokens = MOST, 24
    assert [micro.sequences(rows(9, length)) for length in (3, 4, 12, 25)] == [8, 6, 2, 0]
    model = Linear()
    micro.gradients(model, model, [rows(9)], 1.0)
    assert model.sizes == [8, 1]
    model = Linear(room=5, length=12)
    micro.tokens = 100
    micro.gradients(model, model, [rows(9, 12)], 1.0)
    assert model.sizes == [8, 4, 4, 1] and micro.tokens == 48
    model = Linear(length=100)
    micro.gradients(model, model, [rows(2, 100)], 1.0)
    assert model.sizes == [1, 1]
    micro.tokens = 10**6
    assert micro.sequences(rows(1)) == MOST  # more are no faster


def test_memory_for_moments_that_the_optimizer_has_not_made_yet_is_left_free(monkeypatch):
    monkeypatch.setattr(memory, "peak", lambda device, work: work() or 100)
    monkeypatch.setattr(memory, "held", lambda device: 100)
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    found = []
    model = Linear()
    for optimizer in (None, adamw([model.w], TrainConfig())):
        micro = MicroBatches(AUTO, CPU, optimizer)
        micro.gradients(model, model, [rows(2)], 1.0)
        found.append(micro.tokens)
    # a flat line counts a byte a token; a row has 3 tokens, three weights 24 bytes of moments
    assert found == [3 + 800, 3 + int(0.8 * (1000 - 24))]


def test_a_pass_that_fails_midway_leaves_nothing_in_the_gradient():
    model = Linear(room=4)
    micro = MicroBatches(6, CPU)
    micro.gradients(model, model, [rows(3), rows(6)], 1.0)  # 3 rows are through when 6 fail
    assert model.w.grad.tolist() == (rows(3).x.sum(0) + rows(6).x.sum(0)).tolist()


def test_in_lockstep_a_process_without_states_makes_as_many_passes_and_learns_nothing_from_them():
    class Locked(SingleProcess):
        calls = 0

        def all_gather_object(self, items: list[object], is_done: bool = False) -> list[object]:
            self.calls += 1  # the other process has five passes, and a row
            return [*items, *{1: [5], 2: [rows(1)]}.get(self.calls, [])]

    for own in ([], [rows(4)]):
        model = Linear()
        model.process_group, model.needs_lockstep = Locked(), True
        found = MicroBatches(2, CPU).gradients(model, model, own, 1.0)
        assert model.sizes == ([2, 2, 1, 1, 1] if own else [1] * 5)
        assert model.w.grad.tolist() == (rows(4).x.sum(0).tolist() if own else [0.0] * 3)
        assert found.get("loss", (0.0, 0.0))[0] == (float(rows(4).x.sum()) if own else 0.0)


@pytest.mark.full
def test_auto_measures_without_a_trace(capsys):
    model, micro = Linear(), MicroBatches(AUTO, CPU)
    before = torch.get_rng_state()
    micro.gradients(model, model, [rows(5), rows(9)], 1.0)
    assert model.sizes[:3] == [1, 1, 3]
    assert sum(model.sizes[3:]) == 14 and 3 * max(model.sizes[3:]) <= micro.tokens
    assert model.w.grad.tolist() == (rows(5).x.sum(0) + rows(9).x.sum(0)).tolist()
    after, passes = torch.get_rng_state(), len(model.sizes) - 3
    torch.set_rng_state(before)
    for _ in range(passes):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), after)
    said = f"micro-batches of {micro.tokens} tokens, or {micro.sequences(rows(9))} states of 3"
    assert said in capsys.readouterr().err


def test_a_peak_counts_what_was_freed_since():
    size = 64 * 2**20
    before = memory.held(CPU)
    assert memory.peak(CPU, lambda: torch.ones(size // 4).sum()) > before + 0.9 * size
    assert memory.free(CPU) > size


def test_a_container_has_less_than_its_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert memory.free(CPU) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free(CPU) > GB // 100


def test_auto_is_refused_where_memory_cannot_be_measured(monkeypatch):
    monkeypatch.setattr(memory, "is_measurable", lambda device: False)
    with pytest.raises(DopsdError, match="auto needs an NVIDIA GPU or Linux"):
        MicroBatches(AUTO, SimpleNamespace(type="mps"))
