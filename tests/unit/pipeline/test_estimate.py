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
    ADAPTER_BYTES,
    EAGER_BYTES,
    Cost,
    Facts,
    Shape,
    estimate,
    lines,
    lora_parameters,
)

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
    assert shape.state(456, True) / 1e12 == pytest.approx(26.6, abs=0.1)


def test_a_run_is_its_rollouts_states_and_evaluations():
    cost = estimate(params(), LladaConfig(), Facts(attempts=1.8, test=1319))
    forward = 6.47e12
    trajectories = 500 / 4 * 4  # 125 collects of 4 prompts feed 4 updates each
    assert cost.rollouts == pytest.approx(trajectories * 1.8 * 128 * forward / 1e15, rel=0.01)
    assert cost.training == pytest.approx(trajectories * 112 * 20.0e12 / 1e15, rel=0.01)
    at_512 = Shape(LladaConfig(), 0).forward(712)
    tests = 2 * 1319 * (128 * forward + 256 * at_512)
    assert cost.selection == pytest.approx(21 * 256 * 128 * forward / 1e15, rel=0.01)
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
    assert plain["work"] == pytest.approx(
        8 * 456 * (5.0e-3 + 1.6e-3), rel=0.05
    )  # activations and adapters' inputs
    small = estimate(
        params("reference", "1x80gb", "model.quantization=nf4"), LladaConfig(), facts
    ).memory
    assert small["weights"] < 0.4 * plain["weights"]


@pytest.mark.parametrize(
    ("dropout", "size"), [(0.0, EAGER_BYTES), (0.05, EAGER_BYTES + ADAPTER_BYTES)]
)
def test_bytes_of_a_layer_are_those_that_autograd_keeps(dropout: float, size: int):
    def kept(layers: int) -> int:
        shape = {"d_model": 512, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 1536}
        model = LladaForMaskedLM(
            LladaConfig(**IDS, embedding_size=32, n_layers=layers, **shape)
        ).bfloat16()
        attach(model, AdapterConfig(r=4, dropout=dropout), 0)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = model.train().model(torch.zeros(1, TOKENS, dtype=torch.long))
        assert out.requires_grad
        return sum(t.untyped_storage().nbytes() for place, t in found.items() if place not in own)

    assert (kept(3) - kept(1)) / 2 / TOKENS / 512 == pytest.approx(size, abs=0.5)


def test_what_does_not_fit_is_reported():
    said = lines(Cost(1.0, 1.0, 1.0, 1.0, {"weights": 90.0}), 2, ["h100-80gb", "h200"])
    assert "DOES NOT FIT 80 GB" in said[3] and "; fits" in said[4]
    assert "2 x h200: about 0.0 hours at 35%" in said[4]
