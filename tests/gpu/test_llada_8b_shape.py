"""LLaDA-8B's shape on a pretended GPU: what `dopsd estimate` says of memory and operations."""

from __future__ import annotations

import pytest

from dopsd.models.llada.configuration import LladaConfig
from dopsd.pipeline.estimate import Shape, lora_parameters
from dopsd.pipeline.memory_model import KERNEL_BYTES, memory, rollout_bytes
from gpu import runs

LENGTH = 456  # 200 tokens of a prompt, 256 of an answer


@pytest.fixture(scope="module")
def figures() -> dict:
    return runs.measured("all")[0]


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(LladaConfig(), lora_parameters(LladaConfig(), settings()))


def settings(*changes: str):
    from gpu.llada_8b import settings

    return settings(*changes)


def estimated(shape: Shape, states: int, is_checkpointed: bool) -> float:
    """Return gigabytes of an update."""
    changed = settings(
        f"train.micro_batch_states={states}",
        f"train.gradient_checkpointing={str(is_checkpointed).lower()}",
    )
    return sum(memory(changed, shape, LENGTH).values()) / 1e9


@pytest.mark.full
def test_memory_and_operations_of_updates_are_those_of_the_estimate(figures, shape):
    for update in (*figures["updates"], figures["checkpointed"]):
        states, is_checkpointed = update["states"], update["checkpointing"]
        measured = update["gradients"]
        assert measured["peak_gb"] == pytest.approx(
            estimated(shape, states, is_checkpointed), rel=0.1
        )
        assert measured["tflop"] * 1e12 == pytest.approx(
            states * shape.state(LENGTH, is_checkpointed), rel=0.02
        )
    assert [u["states"] for u in figures["updates"]] == [4, 8, 14]


@pytest.mark.full
def test_memory_and_operations_of_rollouts_are_those_of_the_estimate(figures, shape):
    block = KERNEL_BYTES["torch"]
    for rollout in figures["rollouts"]:
        rows = rollout["rows"]
        sampling = settings(f"sampling.batch_size={rows}").sampling
        work = (rollout["peak_gb"] - rollout["held_gb"]) * 1e9
        assert work == pytest.approx(rollout_bytes(sampling, shape, block, LENGTH), rel=0.1)
        # the first two steps: 32 and 30 masks in the block
        assert rollout["tflop"] * 1e12 == pytest.approx(
            rows * shape.denoising_step(LENGTH, masked=31), rel=0.01
        )
    assert [r["rows"] for r in figures["rollouts"]] == [16, 32, 64]


@pytest.mark.full
def test_a_block_keeps_as_many_bytes_for_the_backward_pass_as_the_estimate_says(figures, shape):
    block = KERNEL_BYTES["torch"]
    largest = figures["updates"][-1]
    copies = 2 * shape.lora_parameters / 32 / (largest["states"] * LENGTH * 4096)
    assert largest["activation_bytes"] == pytest.approx(
        block.kept + block.dropout + copies, abs=0.5
    )
    assert figures["checkpointed"]["activation_bytes"] == pytest.approx(2, abs=0.1)
