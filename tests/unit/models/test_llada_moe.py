"""LLaDA-MoE: fields, published names, parameters; test_decoders.py has its forward pass."""

from __future__ import annotations

from pathlib import Path

import torch
from hub_toys import save_hub
from toys import rewrite

from dopsd.models.loading import build_model
from dopsd.models.registry import published, read_config


def test_widths_and_ids_that_the_file_does_not_name_are_those_of_the_family(tmp_path: Path):
    w = save_hub(tmp_path, "llada_moe")
    absent = dict.fromkeys(["intermediate_size", "moe_layer_freq", "mask_token_id", "eos_token_id"])
    rewrite(tmp_path / "config.json", **absent)
    config = read_config(tmp_path)
    found = {name: p.shape for name, p in build_model(config).state_dict().items()}
    assert found == {name: p.shape for name, p in w.items()}
    assert config.head_dim == 8  # 32 / 4
    assert (config.mask_token_id, config.eos_token_id) == (156895, 156892)


def test_files_have_the_published_names(tmp_path: Path):
    w = save_hub(tmp_path, "llada_moe")
    assert w["model.layers.1.mlp.experts.7.down_proj.weight"].shape == (32, 16)
    assert w["model.layers.0.mlp.gate.weight"].shape == (8, 32)
    assert w["model.layers.0.self_attn.k_norm.weight"].shape == (8,)
    assert "model.layers.0.mlp.gate_proj.weight" not in w


def test_a_fresh_router_does_not_score_all_experts_alike(tmp_path: Path):
    save_hub(tmp_path, "llada_moe")
    model = build_model(read_config(tmp_path))
    assert model.get_parameter("model.layers.0.mlp.gate.weight").std() > 0.01


def test_of_7_4_billion_parameters_a_token_uses_1_4_without_the_embedding():
    config = next(row.config() for row in published() if row.architecture == "llada_moe")
    with torch.device("meta"):
        count = sum(p.numel() for p in build_model(config).parameters())
    embedding = 157184 * 2048
    assert round(count / 1e9, 1) == 7.4
    assert round((count - config.idle_parameters - embedding) / 1e9, 1) == 1.4
