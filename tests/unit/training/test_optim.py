"""The optimizer: few all-reduces with the same bytes, and state that stays where it is read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.distributed.process_group import all_processes
from dopsd.training import optim
from dopsd.training.config import TrainConfig
from dopsd.training.run_settings import RunSettings, warmup_notes

SHAPES = [(5, 3), (7,), (2, 2, 2), (16,), (1,)]


def gradients_of(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def sum_in_buckets() -> None:
    """In each of two processes: the sums in buckets, and those of one reduce for each weight."""
    accelerator = all_processes()
    optim.BUCKET = 4 * 16  # bytes: the weights above need four buckets
    weights = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    for p, gradient in zip(weights, gradients_of(accelerator.process_index), strict=True):
        p.grad = gradient.clone()
    calls, all_reduce = [], dist.all_reduce
    dist.all_reduce = lambda tensor: calls.append(tensor.numel()) or all_reduce(tensor)
    optim.sum_gradients(weights)
    dist.all_reduce = all_reduce
    assert calls == [15, 15, 16, 1]
    alone = [
        accelerator.reduce(gradient, "sum") for gradient in gradients_of(accelerator.process_index)
    ]
    kinds = {"bucket": [p.grad for p in weights], "alone": alone}
    tensors = {f"{kind}.{i}": t for kind, list_ in kinds.items() for i, t in enumerate(list_)}
    save_tensors(tensors, Path(f"{accelerator.process_index}.safetensors"))


@pytest.mark.full
def test_sums_in_buckets_have_the_bytes_of_one_reduce_for_each_weight(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert forks.statuses(forks.start_ranks(2, sum_in_buckets)) == [0, 0], forks.output()
    for rank in (0, 1):
        found = load_tensors(Path(f"{rank}.safetensors"))
        for i, (one, two) in enumerate(zip(gradients_of(0), gradients_of(1), strict=True)):
            assert torch.equal(found[f"bucket.{i}"], one + two)
            assert torch.equal(found[f"bucket.{i}"], found[f"alone.{i}"])


@pytest.mark.parametrize(
    ("problems", "chunks", "published"),
    [(7473, 4, 1), (7473, 8, 2), (12000, 4, 2), (12000, 8, 3), (240_000, 4, 24), (12000, 1, 1)],
)
def test_warm_up_by_ratio_is_a_share_of_an_epoch_as_transformers_counts_it(
    problems: int, chunks: int, published: int
):
    settings = TrainConfig(prompts_per_collect=4, warmup_ratio=1e-4, warmup_updates=99)
    found = optim.with_warmup(settings, problems, chunks)
    assert found.warmup_updates == published
    assert optim.lr_factor(published - 1, found) < 1 == optim.lr_factor(published, found)
    by_number = TrainConfig(warmup_updates=7)
    assert optim.with_warmup(by_number, problems, chunks) is by_number


@pytest.mark.parametrize(
    ("schedule", "warmup", "factors"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 1, [0, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 2, [0, 0.5, 1, 0.5]),
        ("cosine", 0, [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
    ],
)
def test_schedules_by_hand(schedule: str, warmup: int, factors: list[float]):
    settings = TrainConfig(updates=4, schedule=schedule, warmup_updates=warmup)
    assert [optim.lr_factor(n, settings) for n in range(4)] == pytest.approx(factors)


def test_restored_moments_follow_the_weights_and_the_step_stays_where_the_host_reads_it():
    weights = {"a": torch.zeros(2, device="meta"), "b": torch.zeros(3, device="meta")}
    optimizer = optim.adamw(weights.values(), TrainConfig())
    saved = {"step/a": torch.tensor(4.0), "step/b": torch.tensor(4.0)}
    for kind in ("exp_avg", "exp_avg_sq"):
        saved |= {f"{kind}/a": torch.ones(2), f"{kind}/b": torch.ones(3)}
    optim.restore_moments(optimizer, weights, saved)
    for name, p in weights.items():
        state = optimizer.state[p]
        assert state["step"].device.type == "cpu" and float(state["step"]) == 4
        assert state["exp_avg"].device == state["exp_avg_sq"].device == p.device
        assert state["exp_avg"].shape == p.shape, name
    del saved["exp_avg/b"]
    with pytest.raises(KeyError, match="exp_avg/b"):
        optim.restore_moments(optimizer, weights, saved)


def test_a_first_step_adds_two_moments_to_each_weight():
    weights = [torch.ones(6, requires_grad=True), torch.ones(4, dtype=torch.bfloat16)]
    optimizer = optim.adamw(weights, TrainConfig())
    assert optim.moments_to_come(optimizer) == 2 * (6 * 4 + 4 * 2)
    weights[0].sum().backward()
    optimizer.step()  # a weight without a gradient gets none
    assert optim.moments_to_come(optimizer) == 2 * 4 * 2


def test_two_steps_of_adamw_by_hand():
    """Both gradients are clipped to (0.12, 0.16), so that each step is the rate and the decay."""
    weights = torch.tensor([1.0, -2.0], requires_grad=True)
    settings = TrainConfig(learning_rate=0.01, weight_decay=0.1, grad_clip=0.2, warmup_updates=1)
    optimizer, alone = optim.adamw([weights], settings), SimpleNamespace(num_processes=1)
    moved = []
    for update, gradient in enumerate([[3.0, 4.0], [0.3, 0.4]], start=1):
        weights.grad = torch.tensor(gradient)
        optim.optimizer_step(optimizer, alone, settings, update)  # type: ignore[arg-type]
        moved.append(weights.tolist())
    assert moved[0] == pytest.approx([1 * 0.999 - 0.01, -2 * 0.999 - 0.01])  # 0.989, -2.008
    assert moved[1] == pytest.approx([0.989 * 0.999 - 0.01, -2.008 * 0.999 - 0.01])


@pytest.mark.parametrize(
    ("train", "own", "said"),
    [
        ({"updates": 4, "warmup_updates": 3}, None, []),
        ({"updates": 4, "warmup_updates": 100}, None, ["the warm-up takes 100 updates"]),
        ({"warmup_ratio": 0.1}, 15, ["train.warmup_ratio overrides method.x.train.warmup_updates"]),
    ],
)
def test_a_warm_up_that_nobody_can_want_is_named(train, own, said):
    method = SimpleNamespace(
        train=SimpleNamespace(warmup_updates=own, warmup_ratio=None, learning_rate=None)
    )
    run = SimpleNamespace(algorithm=method, section="method.x")
    run.key_of = partial(RunSettings.key_of, run)
    lines = warmup_notes(run, TrainConfig(**train))
    assert [line[: len(text)] for line, text in zip(lines, said, strict=True)] == said
