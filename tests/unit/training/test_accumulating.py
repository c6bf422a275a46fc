"""Micro-batches: measured, halved once, and the same gradient however many there are."""

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
from dopsd.distributed.process_group import SingleProcess
from dopsd.models import memory
from dopsd.training.config import AUTO
from dopsd.training.grad_accumulation import MOST, MicroBatches, Probe, fitting

CPU = torch.device("cpu")
GB = 10**9


@dataclass(frozen=True)
class Rows(Batch):
    x: Tensor  # [B, D]
    weight: Tensor  # [B]


class Linear:
    """Loss sum(w . x), so that w's gradient is the sum of the rows; memory for `room` rows."""

    def __init__(self, room: int = 1000) -> None:
        self.w, self.room, self.sizes = torch.ones(3, requires_grad=True), room, []
        self.process_group, self.is_locked = SingleProcess(), False

    def trainable(self) -> dict[str, Tensor]:
        return {"w": self.w}

    def loss(self, policy: object, batch: Rows) -> LossOutput:
        self.sizes.append(len(batch))
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("no room")
        torch.rand(1)  # as dropout would
        return LossOutput((batch.x @ self.w).sum(), MetricSums())


def rows(n: int) -> Rows:
    return Rows(torch.arange(3.0 * n).view(n, 3), torch.ones(n))


def test_a_line_through_two_peaks_says_how_many_fit():
    one, three = Probe(1, 10 * GB), Probe(3, 12 * GB)
    assert (
        fitting(one, three, held=8 * GB, free=20 * GB) == 1 + 14
    )  # 8 + 0.8 x 20 - 10 = 14 GB, at 1 GB each
    assert (
        fitting(one, three, held=8 * GB, free=2 * GB) == 1
    )  # what fits not even once is still tried
    assert (
        fitting(Probe(2, 10 * GB), Probe(6, 12 * GB), held=8 * GB, free=20 * GB) == 2 + 28
    )  # two sequences a row
    assert fitting(one, three, held=8 * GB, free=2000 * GB) == MOST
    assert (
        fitting(one, Probe(3, 10 * GB), held=8 * GB, free=20 * GB) == 1 + 7
    )  # a flat line: the first pass took 2 GB


def test_what_does_not_fit_is_halved_once_and_the_gradient_is_whole(capsys):
    model, micro = Linear(room=4), MicroBatches(8, CPU)
    found = micro.gradients(model, model, [rows(8), rows(3)], 2.0)
    assert model.sizes == [8, 4, 4, 3]
    assert model.w.grad.tolist() == ((rows(8).x.sum(0) + rows(3).x.sum(0)) / 2).tolist()
    assert found["loss"][0] == float(rows(8).x.sum() + rows(3).x.sum()) / 2
    assert (
        capsys.readouterr().err.count(
            "out of memory at 8 states per pass; micro-batch reduced to 4"
        )
        == 1
    )
    model.room = 2
    with pytest.raises(DopsdError, match="out of memory at 4 states per pass") as caught:
        micro.gradients(model, model, [rows(8)], 2.0)
    assert caught.value.exit_code == 1


def test_a_pass_that_fails_midway_leaves_nothing_in_the_gradient():
    model = Linear(room=4)
    MicroBatches(6, CPU).gradients(
        model, model, [rows(3), rows(6)], 1.0
    )  # 3 rows are through when 6 fail
    assert model.w.grad.tolist() == (rows(3).x.sum(0) + rows(6).x.sum(0)).tolist()


def test_in_lockstep_a_process_without_states_makes_as_many_passes_and_learns_nothing_from_them():
    class Locked(SingleProcess):
        def all_gather_object(self, items: list[object], is_done: bool = False) -> list[object]:
            return [
                *items,
                *([5] if items and isinstance(items[0], int) else [rows(1)]),
            ]  # the other has five passes

    for own in ([], [rows(4)]):
        model = Linear()
        model.process_group, model.is_locked = Locked(), True
        found = MicroBatches(2, CPU).gradients(model, model, own, 1.0)
        assert model.sizes == ([2, 2, 1, 1, 1] if own else [1] * 5)
        assert model.w.grad.tolist() == (rows(4).x.sum(0).tolist() if own else [0.0] * 3)
        assert found.get("loss", (0.0, 0.0))[0] == (float(rows(4).x.sum()) if own else 0.0)


def test_auto_measures_without_a_trace(capsys):
    model, micro = Linear(), MicroBatches(AUTO, CPU)
    before = torch.get_rng_state()
    micro.gradients(model, model, [rows(5), rows(9)], 1.0)
    assert model.sizes[:3] == [1, 1, 3]
    assert sum(model.sizes[3:]) == 14 and max(model.sizes[3:]) <= micro.size
    assert model.w.grad.tolist() == (rows(5).x.sum(0) + rows(9).x.sum(0)).tolist()
    after, passes = torch.get_rng_state(), len(model.sizes) - 3
    torch.set_rng_state(before)
    for _ in range(passes):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), after)
    assert f"micro-batch of {micro.size} states, from measured memory" in capsys.readouterr().err


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
