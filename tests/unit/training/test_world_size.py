"""A run continues with another number of processes: nothing in a checkpoint belongs to a rank."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import forks
import pytest
import rank_gradients
import torch
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.core.tables import read_table
from dopsd.core.tensor_files import load_tensors
from dopsd.tasks.registry import load_task
from dopsd.training.trainer import PromptSampler

pytestmark = pytest.mark.full

NEVER = 1000  # an update that no run here makes


def train(ranks: int, stop_before: int, method: str = "d_opsd") -> None:
    """Train in so many processes until a signal, or to the end."""
    processes = forks.start_ranks(ranks, rank_gradients.stopped_before, stop_before, method)
    ends = {143} if stop_before < NEVER else {0}
    assert set(forks.statuses(processes)) == ends, forks.output()


# of batches of other sizes: 1.0e-6 on an AMD EPYC, less on Intel's; a wrong share is above 1e-2
ROUNDING = 16 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("method", "shard"),
    [
        ("d_opsd", True),
        ("spg", False),
        ("d_opsd", False),
        ("vrpo", False),
    ],
)
def test_the_next_updates_of_one_checkpoint_are_equal_on_one_two_and_three_ranks(
    project, method, shard
):
    """Two ranks wrote it, one with two problems and one with one."""
    write_params(train__prompts_per_collect=3, train__micro_batch_states=5, launch__shard=shard)
    train(2, 1, method)
    found = {}
    for ranks in (1, 2, 3):
        processes = forks.start_ranks(ranks, rank_gradients.resumed, Path(f"{ranks}.st"), method)
        assert forks.statuses(processes) == [0] * ranks, forks.output()
        found[ranks] = load_tensors(Path(f"{ranks}.st"))
        figures = json.loads(Path(f"{ranks}.json").read_text())
        assert all(max(sizes) - min(sizes) <= 1 for sizes in figures["states"] if ranks != 2)
    assert found[1] and sum(value.norm() for value in found[1].values()) > 0
    for ranks in (2, 3):
        for update in {name.split("/")[0] for name in found[1]}:
            names = [name for name in found[1] if name.startswith(f"{update}/")]
            alone, together = (
                torch.cat([found[n][name].flatten() for name in names if "/loss" not in name])
                for n in (1, ranks)
            )
            assert (together - alone).norm() <= ROUNDING * alone.norm()
            before, after = found[1][f"{update}/loss"], found[ranks][f"{update}/loss"]
            assert abs(after - before) < ROUNDING * max(1.0, abs(before))


def test_a_run_on_one_two_three_and_one_ranks_uses_every_problem_of_every_collect_once(project):
    """Each stop is within the updates of a collect, so that batches wait in the checkpoint."""
    write_params(train__updates=7, train__prompts_per_collect=3, train__warmup_updates=0)
    train(1, NEVER)
    alone, figures = used(), rows()
    last = load_tensors(newest() / "adapter_model.safetensors")
    for path in [*Path("work").glob("train-*"), *Path().glob("used-*")]:
        path.rename(path.with_name(f"whole-{path.name}"))
    for ranks, stop_before in ((1, 1), (2, 3), (3, 5), (1, NEVER)):
        train(ranks, stop_before)
    changed = used()
    assert changed["collects"] == alone["collects"] == problems(len(alone["collects"]))
    assert changed["updates"].keys() == alone["updates"].keys() == set(range(7))
    for update, (states, weight) in alone["updates"].items():
        assert changed["updates"][update][0] == states
        assert changed["updates"][update][1] == pytest.approx(weight)
    assert rows() == [pytest.approx(row, abs=1e-4) for row in figures]
    after = load_tensors(newest() / "adapter_model.safetensors")
    assert all(torch.allclose(after[name], tensor, atol=1e-5) for name, tensor in last.items())


def newest() -> Path:
    return sorted(Path("runs/sudoku/d_opsd/0/train").glob("step-*"))[-1]


def rows() -> list[dict[str, float]]:
    """The log without times."""
    table = read_table(Path("runs/sudoku/d_opsd/0/train.csv"))
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in table]


def used() -> dict[str, dict]:
    """The problems of each finished collect, and states and weight of each finished update."""
    collects, updates = {}, {}
    for path in Path().glob("used-*"):
        for line in path.read_text().splitlines():
            kind, number, *values = json.loads(line)
            if kind == "collect":
                collects.setdefault(number, Counter()).update(values[0])
            else:
                old = updates.get(number, (0, 0.0))
                updates[number] = (old[0] + values[0], old[1] + values[1])
    return {"collects": collects, "updates": updates}


def problems(collects: int) -> dict[int, Counter]:
    """The problems of each collect, each once."""
    params = load_params()
    run = params.run("sudoku", "d_opsd", 0)
    split = load_task("sudoku", run.data).load("train")

    class Alone:
        process_index, num_processes = 0, 1

    order = PromptSampler(split, 3, 0, Alone())  # type: ignore[arg-type]
    return {n: Counter(problem.id for problem in order.of(n)) for n in range(collects)}
