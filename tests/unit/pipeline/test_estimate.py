"""The cost model against figures computed by hand for LLaDA-8B at a prompt of 200 and 256
tokens.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import IDS

from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.config.params_file import with_changes
from dopsd.models.config import AdapterConfig
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.lora import attach
from dopsd.pipeline.estimate import (
    Cost,
    Facts,
    Shape,
    estimate,
    lines,
    lora_parameters,
)
from dopsd.pipeline.memory_model import KERNEL_BYTES

TOKENS = 400


def params(preset: str = "reference", hardware: str = "1x80gb", *changes: str):
    raw = with_changes(profiles.resolve("llada-8b-gsm8k", preset, hardware), list(changes))
    return checked(raw, Path("p"))


def test_flops_and_parameters_are_those_of_the_shape():
    shape = Shape(LladaConfig(), lora_parameters(LladaConfig(), params()))
    assert shape.parameters == 8_015_581_184
    assert shape.lora_parameters == 32 * 128 * (3 * 8192 + 16384)  # q, k, v and up: 168M
    assert shape.block_parameters == 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    assert shape.forward(456) / 1e12 == pytest.approx(6.47, abs=0.01)
    assert shape.state(456, False) / 1e12 == pytest.approx(20.0, abs=0.1)
    # again the student's 6.63, without the last layers' 2 x 456 x 32 x 4096 x 12288 = 1.47
    assert shape.state(456, True) / 1e12 == pytest.approx(20.0 + 5.16, abs=0.1)


def test_a_denoising_step_also_computes_the_adapter_and_the_head_at_its_masks():
    shape = Shape(LladaConfig(), lora_parameters(LladaConfig(), params()))
    adapter, head = 2 * 456 * 167.8e6, 2 * 4096 * 126464  # 0.153 TFLOP, and 0.001 a position
    step = shape.denoising_step(456, masked=32)
    assert step - shape.forward(456) == pytest.approx(adapter + 32 * head, rel=0.001)
    # two tokens a step: 32, 30, ... 2 masks, on average 17
    answer = shape.answer(200, params().sampling)
    assert answer == pytest.approx(128 * shape.denoising_step(456, masked=17))


def test_a_run_is_its_rollouts_states_and_evaluations():
    cost = estimate(params(), LladaConfig(), Facts(attempts=1.8, test=1319))
    step, plain = 6.645e12, 6.492e12  # of one row, with the adapter and without
    trajectories = 500 / 4 * 4  # 125 collects of 4 prompts feed 4 updates each
    assert cost.rollouts == pytest.approx(trajectories * 1.8 * 128 * step / 1e15, rel=0.01)
    assert cost.training == pytest.approx(trajectories * 112 * 19.98e12 / 1e15, rel=0.01)
    at_512 = Shape(LladaConfig(), 0).answer(200, params().evaluate.protocols["512"])
    adapters = 256 * 2 * 712 * 167.8e6
    tests = 1319 * (128 * (step + plain) + 2 * at_512 + adapters)
    selection = 256 * 128 * (20 * step + plain)  # 20 checkpoints and the base
    assert cost.selection == pytest.approx(selection / 1e15, rel=0.01)
    assert cost.test == pytest.approx(tests / 1e15, rel=0.01)
    one_update_a_trajectory = estimate(
        params("paper"), LladaConfig(), Facts(attempts=1.8, test=1319)
    )
    assert one_update_a_trajectory.rollouts == pytest.approx(4 * cost.rollouts)


def test_more_micro_batch_states_need_more_memory_and_nf4_less():
    facts = Facts(attempts=1.8, test=1319)
    plain = estimate(params(), LladaConfig(), facts).memory
    assert plain["weights"] == pytest.approx(16.03, abs=0.01)
    assert plain["adapter and optimizer"] == pytest.approx(16 * 0.1678, abs=0.01)
    # GB: activations of 28 x 32 x 4096 bytes a token, the adapter in bfloat16, logits
    assert plain["work"] == pytest.approx(8 * 456 * 3.67e-3 + 0.34 + 0.32, rel=0.01)
    eager = estimate(
        params("reference", "1x80gb", "model.kernels=torch"), LladaConfig(), facts
    ).memory  # 38, and 8 for the inputs and masks of adapters with dropout
    assert eager["work"] - plain["work"] == pytest.approx(8 * 456 * 18 * 32 * 4096 / 1e9)
    small = estimate(
        params("reference", "1x80gb", "model.quantization=nf4"), LladaConfig(), facts
    ).memory
    assert small["weights"] < 0.4 * plain["weights"]


def test_all_weights_have_copies_gradients_and_moments_of_their_own():
    """8.016e9 weights: 2 bytes to compute with, 4 + 4 + 8 for copy, gradient and moments."""
    facts = Facts(attempts=1.8, test=1319)

    def cost(*changes: str) -> Cost:
        changed = params("reference", "1x80gb", "train.weights=all", *changes)
        return estimate(changed, LladaConfig(), facts)

    off = "method.d_opsd.teacher_dropout=false"
    memory, gigabytes = cost(off, "method.d_opsd.teacher=base").memory, 8.015581184
    assert memory["weights"] == pytest.approx(2 * gigabytes, rel=1e-3)
    assert memory["all weights and optimizer"] == pytest.approx(16 * gigabytes)
    assert memory["frozen copy"] == pytest.approx(2 * gigabytes)
    average = cost(off, "method.d_opsd.teacher=ema").memory
    assert average["moving average"] == pytest.approx(4 * gigabytes)
    assert "frozen copy" not in average
    alone = cost(off, "matrix.methods=[just_grpo]").memory
    assert alone.keys() == {"weights", "all weights and optimizer", "work"}
    blocks = 2 * 456 * 32 * (4 * 4096**2 + 3 * 4096 * 12288)  # of a forward's products
    shape, adapted = (Shape(LladaConfig(), n) for n in (0, 1))
    assert shape.state(456, False) - adapted.state(456, False) == pytest.approx(blocks, rel=1e-6)
    said = lines(cost(off), 1, ["h100-80gb"])
    assert "DOES NOT FIT 80 GB: train.weights: lora" in said[-1]


@pytest.mark.parametrize(
    ("trains_all", "kernels"), [(False, "torch"), (True, "torch"), (True, "liger")]
)
def test_bytes_of_a_layer_are_those_that_autograd_keeps(trains_all: bool, kernels: str):
    def kept(layers: int) -> int:
        shape = {"d_model": 512, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 1536}
        model = LladaForMaskedLM(
            LladaConfig(**IDS, embedding_size=32, n_layers=layers, **shape)
        ).bfloat16()
        if not trains_all:
            attach(model, AdapterConfig(r=4, dropout=0.0), 0)
        if kernels == "liger":
            model.fuse()
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = model.train().model(torch.zeros(1, TOKENS, dtype=torch.long))
        assert out.requires_grad
        return sum(t.untyped_storage().nbytes() for place, t in found.items() if place not in own)

    bytes_of_layer = (kept(3) - kept(1)) / 2 / TOKENS / 512
    block = KERNEL_BYTES[kernels]
    expected = block.kept + (block.whole if trains_all else 0)
    assert bytes_of_layer == pytest.approx(expected, abs=0.5)


def test_many_rollouts_need_the_memory_of_their_blocks_and_few_that_of_their_logits():
    def work(rows: int) -> float:
        small = "train.micro_batch_states=1", "train.gradient_checkpointing=true"
        changed = params("reference", "1x80gb", f"sampling.batch_size={rows}", *small)
        return estimate(changed, LladaConfig(), Facts(attempts=1.8, test=1319)).memory["work"]

    assert work(64) == pytest.approx(64 * 456 * 4096 * 24 / 1e9)
    assert work(128) == pytest.approx(2 * work(64))
    assert work(32) == pytest.approx(2**26 * 23 / 1e9 + 32 * 456 * 4096 * 2 / 1e9, rel=0.01)


def test_what_does_not_fit_is_reported():
    said = lines(Cost(1.0, 1.0, 1.0, 1.0, {"weights": 90.0}), 2, ["h100-80gb", "h200"])
    assert "DOES NOT FIT 80 GB" in said[3] and "; fits" in said[4]
    assert "2 x h200: about 0.0 hours at 35%" in said[4]


def test_a_loss_over_whole_completions_has_more_logits_than_one_over_a_block():
    def work(*methods: str) -> float:
        changed = params("reference", "1x80gb", f"matrix.methods=[{', '.join(methods)}]")
        return estimate(changed, LladaConfig(), Facts(attempts=1.8, test=1319)).memory["work"]

    logits = 8 * 126_464 * (256 * 12 - 32 * 10) / 1e9  # of 8 sequences
    assert work("d_opsd", "espo") - work("d_opsd") == pytest.approx(logits)
