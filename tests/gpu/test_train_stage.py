"""Stages of the toy project on a pretended GPU, with true values."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from conftest import write_params
from ports import free_port

from dopsd.cli.main import main
from dopsd.core.tables import read_table
from dopsd.core.tensor_files import load_tensors
from gpu import runs
from gpu.command import KILLED_AT, REPORT

OUT = Path("runs/sudoku/d_opsd/0/train")


def outputs() -> dict[str, bytes]:
    """Return the bytes of a run's table and adapters."""
    paths = [OUT.with_suffix(".csv"), *OUT.glob("*/adapter_model.safetensors")]
    return {str(path): path.read_bytes() for path in paths}


def use_the_optimizer_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let AdamW be fused, as on a GPU: it rounds otherwise than that of a CPU."""
    made = torch.optim.AdamW.__init__

    def fused(self, *args, **kwargs):
        made(self, *args, **(kwargs | {"fused": True}))

    monkeypatch.setattr(torch.optim.AdamW, "__init__", fused)


def set_aside() -> None:
    for folder in ("runs", "work"):
        Path(folder).rename(f"{folder}-of-cpu")


@pytest.mark.full
def test_a_run_that_was_killed_and_continued_on_a_gpu_has_the_bytes_of_the_cpu(
    project, monkeypatch
):
    use_the_optimizer_of_gpus(monkeypatch)
    assert main(["train"]) == 0
    alone = outputs()
    set_aside()
    runs.output(runs.start("run", "train", **{KILLED_AT: "3"}), -signal.SIGKILL)
    assert not OUT.exists()
    printed = runs.output(runs.start("run", "train", **{REPORT: "report.json"}))
    assert "continuing after update 2" in printed
    assert outputs() == alone
    machine = json.loads(next(Path("work").glob("train-*/machine.json")).read_text())
    assert "pretended H100" in json.dumps(machine)
    # after a resume AdamW asks for its count of steps at each weight, if that is on the device
    waits = json.loads(Path("report.json").read_text())["syncs_by_line"]
    assert sum(n for line, n in waits.items() if "optim.py" in line and "item" in line) <= 2


@pytest.mark.full
def test_the_base_scores_the_same_on_a_gpu(project):
    def scores() -> tuple[dict, str]:
        (found,) = json.loads(Path("runs/sudoku/base.json").read_text()).values()
        (machine,) = found.pop("measured_on")
        return found, machine["device"]

    assert main(["evaluate_base"]) == 0
    on_cpu, _ = scores()
    set_aside()
    runs.output(runs.start("run", "evaluate_base"))
    assert scores() == (on_cpu, "pretended H100 80GB")


@pytest.mark.full
def test_two_ranks_on_two_gpus_train_what_one_process_trains(project):
    """Collectives of NCCL are replaced by gloo's."""
    write_params(train__updates=2, train__prompts_per_collect=3, train__warmup_updates=0)
    assert main(["train"]) == 0
    last = OUT / "step-000002/adapter_model.safetensors"
    alone, row = load_tensors(last), read_table(OUT.with_suffix(".csv"))[-1]
    set_aside()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shared |= {"PRETENDED_GPUS": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        runs.start("run", "train", RANK=str(rank), LOCAL_RANK=str(rank), **shared)
        for rank in range(2)
    ]
    for rank in ranks:
        runs.output(rank)
    together, other = load_tensors(last), read_table(OUT.with_suffix(".csv"))[-1]
    assert all(torch.allclose(together[name], tensor, atol=1e-5) for name, tensor in alone.items())
    counts = [{k: v for k, v in r.items() if k.startswith("count/")} for r in (row, other)]
    assert counts[0] == counts[1]
