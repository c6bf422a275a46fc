"""Bases of the hub's other architectures: in parts over two processes, compiled, in 4 bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import forks
import pytest
import rank_gradients
import torch
from conftest import write_params
from hub_toys import save_hub
from toys import save_toy
from trained_toys import BASE, BLOCKS, TARGETS, has_blocks, settings

from dopsd.core.errors import DopsdError
from dopsd.core.tensor_files import load_tensors
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.loading import build_model, nf4
from dopsd.models.registry import ARCHITECTURES, config_class

OTHERS = ["Dream", "sdar", "llada2_moe"]


def toy(name: str, folder: Path = BASE) -> list[str]:
    """Write a toy with random weights; return layers for its adapters."""
    changes = {"block_size": BLOCKS} if has_blocks(name) else {}
    save_hub(folder, name, max_position_embeddings=256, **changes)
    targets = settings(name)["train__lora__targets"]
    assert isinstance(targets, list)
    return targets


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_a_base_in_parts_over_two_ranks_gives_the_same_bits(project: Path, name: str):
    toy(name)
    changes = settings(name) | {"train__prompts_per_collect": 2}
    changes |= {"method__d_opsd__keep": "all", "method__d_opsd__attempts": 1}
    found = []
    for is_sharded in (False, True):
        write_params(**changes, launch__shard=is_sharded)
        path = Path(f"{is_sharded}.safetensors")
        processes = forks.start_ranks(2, rank_gradients.main, path, "d_opsd")
        assert forks.statuses(processes) == [0, 0], forks.output()
        found.append(load_tensors(path))
        assert json.loads(path.with_suffix(".json").read_text())["sharded"] is is_sharded
    whole, parts = found
    assert any(tensor.abs().max() > 0 for tensor in whole.values())
    assert all(torch.equal(parts[key], tensor) for key, tensor in whole.items())


@pytest.mark.full
@pytest.mark.skipif(which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize("name", ["llada", *OTHERS])
def test_compiled_blocks_give_the_same_answers_and_gradients(tmp_path, monkeypatch, name: str):
    """Traced, and computed without the C++ that would take half a minute."""
    graphs: list[int] = []

    def traced(graph: torch.fx.GraphModule, given: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(len(given))
        return graph.forward

    slow = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda block, **kinds: slow(block, backend=traced, **kinds)
    )
    targets = ["q_proj", "up_proj"] if name == "llada" else toy(name, tmp_path)
    if name == "llada":
        save_toy(tmp_path)
    lora = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=targets)
    ids = torch.arange(5, 5 + 2 * 2 * BLOCKS).view(2, -1)
    keep = torch.ones_like(ids, dtype=torch.bool)
    keep[0, :3] = False

    def results(is_compiled: bool) -> list[torch.Tensor]:
        model = ModelConfig(path=str(tmp_path), compile=is_compiled)
        policy: LlmPolicy = load_policy(model, lora, 0, torch.device("cpu"))
        for number, p in enumerate(policy.trainable().values()):
            torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            sampled = policy.hidden(ids, keep)[keep]
            with policy.reference():
                plain = policy.hidden(ids, keep)[keep]
        policy.use_gradient_checkpointing()
        out = policy.hidden(ids, None)
        out.square().mean().backward()
        assert bool(graphs) is is_compiled
        return [sampled, plain, out.detach(), *(p.grad for p in policy.trainable().values())]

    for eager, compiled in zip(results(False), results(True), strict=True):
        torch.testing.assert_close(eager, compiled, rtol=1e-4, atol=1e-5)
    if name == "llada":  # two equal blocks, four kinds of calls: some were shared
        assert len(graphs) < 2 * 4


@pytest.mark.parametrize("name", ARCHITECTURES.names)
def test_nf4_leaves_the_head_alone_and_not_the_blocks(name: str):
    from transformers.quantizers.quantizers_utils import should_convert_module

    config = config_class(name)(eos_token_id=0)
    with torch.device("meta"):
        model = build_model(config.toy())
    patterns = nf4(config.head_module).llm_int8_skip_modules
    linear = [n for n, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    kept = [n for n in linear if not should_convert_module(n, patterns)]
    assert kept == [config.head_module] and len(linear) > 7


@pytest.mark.parametrize("name", ["llada2_moe", "llada_moe"])
def test_experts_get_no_adapters(name: str, tmp_path: Path):
    """Neither in silence nor for the dense layers alone."""
    save_hub(tmp_path, name)
    model = ModelConfig(path=str(tmp_path))
    for targets in (["down_proj"], [*TARGETS[name], "up_proj"]):
        said = rf"lora.targets: {targets[-1]} names layers of experts, which get no adapters"
        with pytest.raises(DopsdError, match=said):
            load_policy(model, AdapterConfig(r=2, targets=targets), 0)
    assert load_policy(model, AdapterConfig(r=2, targets=TARGETS[name]), 0).trainable()
