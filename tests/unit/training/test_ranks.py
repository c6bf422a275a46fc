"""Two processes train what one trains, and go on to the same bytes after one was killed."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest
import rank_gradients
import torch
from conftest import write_params
from slow_training import killed_after
from toy_project import methods_with
from toy_runs import adapter_digests
from warm_python import warm_bin

from dopsd.algorithms.common.config import GroupConfig
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.tensor_files import load_tensors
from dopsd.distributed.config import LaunchConfig
from dopsd.distributed.launch import launch
from dopsd.training.trainer import Trainer


def gradients_of(
    ranks: int, name: str, method: str = "d_opsd"
) -> tuple[dict[str, torch.Tensor], dict]:
    """Gradients of the first collect, summed over processes, and what these did."""
    processes = forks.start_ranks(ranks, rank_gradients.main, Path(name), method)
    assert forks.statuses(processes) == [0] * ranks, forks.output()
    return load_tensors(Path(name)), json.loads(Path(name).with_suffix(".json").read_text())


@pytest.mark.full
def test_loss_and_gradient_of_two_ranks_are_those_of_one_to_rounding(project):
    """Uneven work: a rank without a trajectory learns from half of the other's states."""
    write_params(
        train__prompts_per_collect=2, method__d_opsd__keep_threshold=0.5, method__d_opsd__attempts=2
    )
    found = {ranks: gradients_of(ranks, f"{ranks}.safetensors") for ranks in (1, 2)}
    (alone, one), (together, two) = found[1], found[2]
    assert alone.keys() == together.keys() and one["counters"] == two["counters"]
    assert min(two["kept"]) == 0 < max(two["kept"])
    assert [sum(sizes) for sizes in two["states"]] == [sum(sizes) for sizes in one["states"]]
    assert all(max(sizes) - min(sizes) <= 1 for sizes in two["states"])
    assert_same_gradients(alone, together, len(one["states"]))


def assert_same_gradients(
    alone: dict[str, torch.Tensor], together: dict[str, torch.Tensor], updates: int
) -> None:
    for update in range(updates):
        names = [
            name for name in alone if name.startswith(f"{update}/") and not name.endswith("/loss")
        ]
        whole = torch.cat([alone[name].flatten() for name in names])
        gap = torch.cat([(together[name] - alone[name]).flatten() for name in names])
        assert whole.norm() > 0
        assert gap.norm() < 1e-6 * whole.norm()
        before, after = alone[f"{update}/loss"], together[f"{update}/loss"]
        # a loss near 0 is a difference of sums of many nats, and has their rounding
        assert abs(after - before) < 1e-6 * max(1.0, abs(before))


RANKED = [(method, "lora") for method in methods_with(GroupConfig)]


@pytest.mark.parametrize(("method", "weights"), [*RANKED, ("espo", "all")])
@pytest.mark.full
def test_groups_on_two_ranks_give_the_loss_and_gradient_of_one(project, method, weights):
    """Two problems and one, also with a part of the rows in each micro-batch."""
    size = {f"method__{method}__group_size": 3, "train__prompts_per_collect": 3}
    write_params(**size, train__micro_batch_states=4, train__weights=weights)
    (together, two), (alone, one) = (gradients_of(n, f"{n}.safetensors", method) for n in (2, 1))
    assert alone, f"{method}: its collect kept nothing; let tests/toy_project.py have it keep some"
    assert alone.keys() == together.keys() and one["counters"] == two["counters"]
    assert [sum(sizes) for sizes in two["states"]] == [sum(sizes) for sizes in one["states"]]
    assert_same_gradients(alone, together, len(one["states"]))


@pytest.mark.parametrize(("method", "draws"), [("d_opsd", 2), ("vrpo", 2), ("vrpo", 1)])
@pytest.mark.full
def test_a_base_in_parts_over_two_ranks_gives_the_same_bits(project, method: str, draws: int):
    """Uneven forwards: whoever has none takes part in the other's."""
    settings = {
        "train__prompts_per_collect": 2 if method == "d_opsd" else 3,
        "method__d_opsd__keep_threshold": 0.5,
        "method__d_opsd__attempts": 2,
        "method__vrpo__draws": draws,
    }
    write_params(**settings, train__micro_batch_states=1)
    whole, found = gradients_of(2, "whole.safetensors", method)
    recomputed = {"launch__shard": True, "train__gradient_checkpointing": True}
    write_params(**settings, train__micro_batch_states=1, **recomputed)
    parts, same = gradients_of(2, "parts.safetensors", method)
    assert any(len(set(sizes)) > 1 for sizes in same["states"])  # one rank makes a pass more
    assert found | {"sharded": True} == same
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.full
def test_a_rank_of_a_sharded_base_without_memory_says_what_to_lower(project, place: str):
    """The other one waits in the same pass, and ends as when a rank is lost."""
    write_params(train__prompts_per_collect=3, launch__shard=True, train__micro_batch_states=16)
    ends = forks.statuses(forks.start_ranks(2, rank_gradients.without_memory, place, 8))
    assert ends == [75, 1], forks.output(0) + forks.output(1)
    said = "out of memory with launch.shard; set train.micro_batch_states to a lower number"
    assert said in forks.output(1) and "(D514)" in forks.output(0)
    assert "Traceback" not in forks.output(0) + forks.output(1)


@pytest.mark.full
def test_auto_with_a_sharded_base_gives_all_ranks_one_size(project):
    write_params(train__prompts_per_collect=3, train__micro_batch_states=8)
    whole = gradients_of(2, "whole.safetensors")[0]
    write_params(train__prompts_per_collect=3, train__micro_batch_states="auto", launch__shard=True)
    parts, found = gradients_of(2, "parts.safetensors")
    assert len(set(map(tuple, found["sizes"]))) == 1 and found["sizes"][0][1] > 0
    assert_same_gradients(whole, parts, len(found["states"]))


@pytest.mark.full
@forks.with_a_launcher
def test_two_ranks_evaluate_with_a_base_in_parts(project, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(warm_bin() / "python"))  # the launcher starts it
    write_params(launch__processes=2, train__updates=1, launch__shard=True)
    assert main(["train"]) == main(["evaluate"]) == main(["select"]) == main(["test"]) == 0
    run_key = Path("runs/sudoku/d_opsd/0")
    files = run_key / "evaluate.json", run_key / "test/paired.json"
    parts = {path: path.read_bytes() for path in files}
    write_params(launch__processes=2, train__updates=1)
    for path in Path("work/eval").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["evaluate"]) == main(["test"]) == 0
    assert {path: path.read_bytes() for path in parts} == parts


def test_what_cannot_be_computed_by_several_ranks_is_refused(project, capsys):
    write_params(launch__shard=True, model__compile=True)
    assert main(["check"]) == 2
    assert (
        "launch.shard: needs model.quantization none, compile and cuda_graphs false"
        in capsys.readouterr().err
    )
    accelerator = SimpleNamespace(num_processes=2, process_index=0, is_main_process=True)
    for method, changes, said in (
        (  # named on the command line, not in the matrix
            "vrpo",
            {"launch__shard": True, "method__vrpo": {"train": {"weights": "all"}}},
            "vrpo trains all weights",
        ),
        ("d_opsd", {"train__prompts_per_collect": 1}, "1 problems leave some of the 2 ranks"),
    ):
        write_params(**changes)
        with pytest.raises(DopsdError, match=said):
            Trainer(load_params().run("sudoku", method, 0), accelerator)


def test_a_rank_without_batches_sends_the_same_dtype_as_the_others():
    loop, sent = Trainer.__new__(Trainer), []
    loop.algorithm = SimpleNamespace(normalize_by_all_prompts=False)
    loop.policy = SimpleNamespace(device=torch.device("cpu"))
    loop.accelerator = SimpleNamespace(reduce=lambda tensor, _: sent.append(tensor) or tensor)
    assert loop._denominator([]) == 1.0
    assert [tensor.dtype for tensor in sent] == [torch.float32]


@pytest.mark.full
def test_a_port_of_the_meeting_that_another_program_uses_is_named(project):
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        rank = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
        assert forks.statuses([forks.start(forks.command, "train", **at, **rank)]) == [75]
    used = f"127.0.0.1:{at['MASTER_PORT']} is in use by another program"
    assert f"train: {used}; name a free port (MASTER_PORT)" in forks.output()


@pytest.mark.full
@pytest.mark.parametrize(("dead", "update"), [(1, 1), (0, 3)])
def test_the_others_end_soon_and_a_rerun_continues_from_the_last_checkpoint(project, dead, update):
    """Before the first checkpoint, and within the updates of a collect after it."""
    write_params(train__updates=5, train__prompts_per_collect=3, train__checkpoint_every=2)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    whole = adapter_digests()
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name("whole"))
    began = time.monotonic()
    ends = forks.statuses(forks.start_ranks(2, killed_after, update, str(dead)))
    assert time.monotonic() - began < forks.BOUND / 3
    said = forks.output(1 - dead)
    assert ends[dead] == -9 and ends[1 - dead] == 75, said
    (folder,) = Path("work").glob("train-*")
    (line,) = [line for line in said.splitlines() if "(D514)" in line]
    assert f"continues from the last checkpoint in {folder}" in line and "Traceback" not in said
    assert [path.name for path in folder.glob("step-*")] == ["step-000002"] * (update > 2)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    assert ("continuing after update 2" in forks.output()) == (update > 2)
    assert adapter_digests() == whole


@pytest.mark.full
@forks.with_a_launcher
def test_the_launcher_names_the_process_that_was_killed(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert forks.statuses([forks.start(launch_one_that_is_killed)]) == [137], forks.output()
    assert "process 1 of the run was killed by SIGKILL" in forks.output()


def launch_one_that_is_killed() -> None:
    """Two processes: the second kills itself."""
    script = Path("process").absolute()
    script.write_text("#!/bin/sh\nif [ $RANK = 1 ]; then kill -9 $$; fi\nexec sleep 60\n")
    script.chmod(0o755)
    sys.executable = str(script)
    sys.exit(launch(LaunchConfig(processes=2), ["train"]))
