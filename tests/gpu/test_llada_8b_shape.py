"""LLaDA-8B's shape on a pretended GPU: waits of the host, memory and operations."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT

from dopsd.models.llada.configuration import LladaConfig
from dopsd.pipeline.memory_model import block_bytes, memory, rollout_bytes
from dopsd.pipeline.shape import Shape, lora_parameters
from gpu import llada_8b, runs

pytestmark = pytest.mark.full

LENGTH = 456  # 200 tokens of a prompt, 256 of an answer


@pytest.fixture(scope="module")
def figures() -> dict:
    return runs.measured("all")[0]


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(LladaConfig(), lora_parameters(LladaConfig(), settings()))


def settings(*changes: str):
    from random_weights import settings

    return settings(*changes)


def estimated(shape: Shape, update: dict, kernels: str) -> float:
    """Return gigabytes of an update."""
    changed = settings(
        f"train.micro_batch_states={update['states']}",
        f"train.gradient_checkpointing={str(update['checkpointing']).lower()}",
        f"model.kernels={kernels}",
    )
    return sum(memory(changed, shape, LENGTH).values()) / 1e9


def test_the_host_rarely_waits_for_the_gpu(figures):
    """At most once a denoising step, four times a micro-batch, ten times a plan of any size."""
    for rollout in figures["rollouts"]:
        assert rollout["syncs"] <= 1, rollout["syncs_by_line"]
    for update in (*figures["updates"], figures["checkpointed"]):
        assert update["gradients"]["syncs"] <= 4, update["gradients"]["syncs_by_line"]
        assert update["optimizer"]["syncs"] <= 1, update["optimizer"]["syncs_by_line"]
    for collect in figures["collects"]:
        assert collect["syncs"] <= 10, collect["syncs_by_line"]
    assert [c["states"] for c in figures["collects"]] == [128, 510]


def test_memory_and_operations_of_updates_are_those_of_the_estimate(figures, shape):
    updates = [(update, "liger") for update in (*figures["updates"], figures["checkpointed"])]
    for update, kernels in (*updates, (figures["plain_update"], "torch")):
        measured, states = update["gradients"], update["states"]
        expected = estimated(shape, update, kernels)
        assert measured["peak_gb"] == pytest.approx(expected, rel=0.1)
        operations = states * shape.state(LENGTH, update["checkpointing"])
        assert measured["tflop"] * 1e12 == pytest.approx(operations, rel=0.02)
    assert [u["states"] for u in figures["updates"]] == [4, 8, 14]


def test_memory_and_operations_of_rollouts_are_those_of_the_estimate(figures, shape):
    rollouts = [(rollout, "liger") for rollout in figures["rollouts"]]
    for rollout, kernels in (*rollouts, (figures["plain_rollout"], "torch")):
        rows = rollout["rows"]
        sampling = settings(f"sampling.batch_size={rows}").sampling
        work = (rollout["peak_gb"] - rollout["held_gb"]) * 1e9
        expected = rollout_bytes(sampling, shape, block_bytes(kernels), LENGTH)
        assert work == pytest.approx(expected, rel=0.1)
        # the first two steps: 32 and 30 masks in the block
        operations = rows * shape.denoising_step(LENGTH, masked=31)
        assert rollout["tflop"] * 1e12 == pytest.approx(operations, rel=0.01)
    assert [r["rows"] for r in figures["rollouts"]] == [16, 32, 64]


@pytest.mark.parametrize(("name", "kernels"), [("updates", "liger"), ("plain_update", "torch")])
def test_a_block_keeps_as_many_bytes_as_the_estimate_says(figures, shape, name, kernels):
    found = figures[name]
    update = found[-1] if isinstance(found, list) else found
    block, tokens = block_bytes(kernels), update["states"] * LENGTH
    copies = 2 * shape.lora_parameters / 32 / tokens / 4096  # the adapter in bfloat16
    assert update["activation_bytes"] == pytest.approx(block.kept + block.dropout + copies, abs=0.5)
    assert figures["checkpointed"]["activation_bytes"] == pytest.approx(2, abs=0.1)


def test_the_figures_that_a_measured_gpu_is_compared_with_are_current(figures):
    """If one is off by 2%: `PYTHONPATH=tests python -m gpu modelled` writes them again."""
    current = llada_8b.modelled(figures)
    kept = json.loads((ROOT / "benchmarks/gpu/modelled.json").read_text())
    assert kept.keys() == current.keys()
    for kernels, cases in current.items():
        assert kept[kernels].keys() == cases.keys()
        for name, case in cases.items():
            assert kept[kernels][name] == pytest.approx(case, rel=0.02)


def test_useful_utilisation_of_the_model_stays(figures):
    """Modelled, not measured: 45% of an H100 in updates, 50% in rollouts."""
    assert figures["updates"][-1]["gradients"]["useful_utilisation"]["h100"] >= 0.45
    assert figures["rollouts"][-1]["useful_utilisation"]["h100"] >= 0.50
