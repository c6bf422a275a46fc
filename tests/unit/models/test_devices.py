"""Which GPU a process computes on, and what happens when two processes would share one."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest
import torch
from conftest import ROOT
from toys import save_toy

from dopsd.core.errors import DopsdError
from dopsd.distributed import launch
from dopsd.distributed.process_group import all_processes, refuse_shared_gpu
from dopsd.models import device, llm_policy
from dopsd.models.backends import dtype_of, resolved
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that so many GPUs are visible; `current` lists what becomes the current device."""
    current: list[torch.device] = []

    def see(count: int, **environment: str) -> list[torch.device]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return current

    return see


def test_auto_computes_in_bfloat16_where_that_is_fast(tmp_path, monkeypatch, capsys):
    save_toy(tmp_path)
    auto = ModelConfig(path=str(tmp_path), dtype="auto")
    for has_amx, dtype in ((False, "float32"), (True, "bfloat16")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=has_amx: has)
        assert resolved(auto).dtype == dtype and resolved(auto).decisive()["dtype"] == dtype
        policy = load_policy(auto, None, 0)
        assert str(policy.core.dtype) == f"torch.{dtype}"
        assert ("rounded to bfloat16" in capsys.readouterr().err) is has_amx
    assert dtype_of(auto, torch.device("cuda", 0)) == "bfloat16"


def test_a_process_that_sees_only_its_own_gpu_computes_there(gpus):
    gpus(8, LOCAL_RANK="3")
    assert device.own_device() == torch.device("cuda", 3)
    gpus(1)  # Slurm's --gpus-per-task=1
    assert device.own_device() == torch.device("cuda", 0)


def test_every_command_that_loads_a_model_makes_its_gpu_the_current_one(gpus, monkeypatch):
    current = gpus(2, LOCAL_RANK="1")
    for name in ("load_base", "load_tokenizer", "LlmPolicy"):
        monkeypatch.setattr(llm_policy, name, lambda *given, **more: SimpleNamespace(config=None))
    llm_policy.load_policy(ModelConfig(path="."), None, 0)
    assert current == [torch.device("cuda", 1)]
    llm_policy.load_policy(ModelConfig(path="."), None, 0, torch.device("cuda", 0))
    assert len(current) == 1  # a caller's device is the caller's


def test_processes_that_seem_to_share_a_gpu_are_warned_of(gpus, capsys):
    gpus(2, LOCAL_WORLD_SIZE="2")
    device.take_device()
    assert not capsys.readouterr().err
    gpus(1)
    device.take_device()
    assert "2 processes on this machine see 1 GPUs each" in capsys.readouterr().err


def test_our_own_launcher_refuses_more_processes_than_gpus(gpus):
    gpus(2)
    launch.check_gpus(2)
    with pytest.raises(DopsdError, match=r"launch\.processes: 3 processes, but 2 GPUs"):
        launch.check_gpus(3)


def compare_gpus(names: list[str]) -> None:
    """In each process: pretend to hold the GPU of this name."""
    accelerator = all_processes()
    try:
        refuse_shared_gpu(names[accelerator.process_index], accelerator)
    except DopsdError as error:
        Path(f"refused-{accelerator.process_index}").write_text(str(error))
    accelerator.wait_for_everyone()


@pytest.mark.full
def test_two_processes_on_one_gpu_are_refused_in_training_and_two_gpus_are_not(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for names, refused in ((["GPU-a", "GPU-b"], 0), (["GPU-a", "GPU-a"], 2)):
        assert forks.statuses(forks.start_ranks(2, compare_gpus, names)) == [0, 0], forks.output()
        errors = [path.read_text() for path in Path().glob("refused-*")]
        assert len(errors) == refused
    assert all("processes 0, 1 share a GPU (GPU-a)" in error for error in errors)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}, None),
    ],
)
def test_the_allocator_grows_its_segments_unless_the_user_chose_otherwise(
    monkeypatch, chosen, expected
):
    monkeypatch.setattr(os, "environ", dict(chosen))
    launch.use_expandable_segments()
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == expected


def forwards() -> None:
    """Five passes; the faults of each of the last three."""
    policy = llm_policy.load_policy(ModelConfig(path=str(ROOT / "base/sudoku")), None, 0)
    faults, ids = [], torch.full((64, 57), 5)
    with torch.no_grad():
        for _ in range(5):
            policy.hidden(ids, None)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    Path("faults").write_text(str((faults[-1] - faults[1]) / 3))


@pytest.mark.full
def test_a_forward_pass_on_a_cpu_takes_no_fresh_pages_from_linux(tmp_path, monkeypatch):
    """glibc alone gives freed memory back: 4,000 to 18,000 faults in each of these passes."""
    monkeypatch.chdir(tmp_path)
    assert forks.statuses([forks.start(forwards)]) == [0], forks.output()
    assert float(Path("faults").read_text()) < 2000


def test_a_small_model_takes_one_thread_unless_the_environment_says_otherwise(monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS")
    device.choose_threads(900_000)
    device.choose_threads(135_000_000)
    assert chosen == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    device.choose_threads(900_000)
    assert chosen == [1]
