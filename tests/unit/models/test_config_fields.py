"""Fields of config.json that a model class cannot compute: one line each, by name, exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hub_toys import NAMES, save_hub
from toys import rewrite, toy

from dopsd.cli.main import main
from dopsd.core.errors import DopsdError
from dopsd.models.registry import read_config

UNKNOWN = "which is not verified for this model; remove what changes nothing"


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A toy of each architecture, in the layout of the hub."""
    folder = tmp_path_factory.mktemp("toys")
    for name in (*NAMES, "llada2_moe"):
        save_hub(folder / name, name)
    toy().save_pretrained(folder / "llada")
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("sdar", {"output_shift": 1}, "output_shift: 1; this model computes 0 only"),
        ("Dream", {"output_shift": 0}, "output_shift: 0; this model computes 1 only"),
        ("sdar", {"attention_patterns": ["bidirectional"]}, "attention_patterns"),
        ("a2d-qwen3", {"cool_new_switch": True}, f"cool_new_switch: True, {UNKNOWN}"),
        ("llada", {"output_shift": 1}, "output_shift: 1; this model computes 0 only"),
        ("llada", {"cool_new_switch": 2}, f"cool_new_switch: 2, {UNKNOWN}"),
        ("llada2_moe", {"logit_scale": 0.5}, f"logit_scale: 0.5, {UNKNOWN}"),
        (
            "Dream",
            {"layer_types": ["sliding_attention"] * 2},
            "this model computes full_attention only",
        ),
        ("a2d-qwen3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        ("llada2_moe", {"partial_rotary_factor": 1.0}, "partial_rotary_factor 1.0 "),
        ("llada_moe", {"router_num_group": 4}, "router_num_group: 4"),
        ("llada_moe", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        (
            "sdar",
            {"eos_token_id": [0, 3]},
            r"eos_token_id: \[0, 3\]; expected one id",
        ),
        ("llada", {"eos_token_id": 5000}, "eos_token_id: 5000; expected one id below the 112"),
        ("sdar", {"mask_token_id": -1}, "mask_token_id: -1; expected one id"),
        ("sdar", {"block_size": -4}, "block_size: -4; expected a whole number above 0"),
        ("sdar", {"block_size": True}, "block_size: True; expected a whole number above 0"),
        ("Dream", {"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of"),
        ("Dream", {"num_hidden_layers": "2"}, "num_hidden_layers: '2'; expected a whole number"),
        ("illada", {"hidden_size": 33}, "without head_dim divide hidden_size 33"),
        ("illada", {"rope_theta": "abc"}, "rope_theta: 'abc'; expected a number above 0"),
        ("illada", {"rope_parameters": "x"}, "rope_parameters: 'x'; expected a table"),
        ("llada", {"n_layers": 2.5}, "n_layers: 2.5; expected a whole number above 0"),
        ("sdar", {"a": 1, "b": "x"}, f"a: 1, b: 'x', {UNKNOWN}"),
        ("sdar", {"quantization_config": {"bits": 4}}, "quantised weights are not read"),
        ("sdar", {"layer_types": 5}, "layer_types: 5; this model computes full_attention only"),
        ("sdar", {"rope_theta": 10**400}, "expected a number above 0"),
        ("sdar", {"tie_word_embeddings": "false"}, "not a model's config"),
        ("Dream", {"dtype": "foo"}, "not a model's config"),
        (
            "a2d-qwen3",
            {"rope_theta": None, "rope_parameters": {"full_attention": {}}},
            "lacks rope_theta",
        ),
        ("llada", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters"),
        ("llada2_moe", {"first_k_dense_replace": "1"}, "first_k_dense_replace 1 must be"),
        ("llada2_moe", {"num_shared_experts": 0}, "num_shared_experts 0 must be a whole number"),
        ("llada2_moe", {"routed_scaling_factor": "x"}, "routed_scaling_factor: 'x'; expected"),
        ("llada2_moe", {"num_experts_per_tok": 99}, "num_experts_per_tok 99 are more than"),
        ("llada2_moe", {"rotary_dim": 3, "partial_rotary_factor": None}, "rotary_dim 3 must be"),
        ("llada2_moe", {"partial_rotary_factor": 1e400}, "partial_rotary_factor"),
        ("llada2_moe", {"score_function": "softmax"}, "score_function: 'softmax'"),
        ("llada2_moe", {"n_group": 3}, "num_experts 8 must be n_group 3 times"),
        ("llada2_moe", {"topk_group": 5}, "topk_group 5 at most n_group"),
        ("llada_moe", {"norm_topk_prob": True}, "norm_topk_prob: True; this model computes False"),
        ("llada_moe", {"qk_layernorm": False}, "qk_layernorm: False; this model computes True"),
        ("llada_moe", {"moe_layer_freq": [0, 1]}, r"moe_layer_freq: \[0, 1\]"),
        ("llada_moe", {"shared_expert_intermediate_size": 16}, "shared_expert_intermediate_size"),
        ("llada_moe", {"expert_intermediate_size": None}, "lacks expert_intermediate_size"),
        ("llada_moe", {"intermediate_size": 48}, "intermediate_size: 48; this model computes 16"),
        ("llada_moe", {"head_dim": 16}, "head_dim: 16; this model computes 8 only"),
        ("a2d-qwen3", {"head_dim": None}, "config.json lacks head_dim"),
        ("a2d-qwen3", {"attention_bias": True}, "attention_bias: True; this model computes False"),
        ("Dream", {"block_size": 32}, "block_size: 32; this model computes no such thing"),
        ("Dream", {"mask_token_id": None}, "lacks mask_token_id"),
        ("Dream", {"rope_scaling": {"type": "yarn"}}, "rope_type: 'yarn'"),
        ("Dream", {"rope_scaling": {"factor": 2.0}}, "rope_scaling {'factor': 2.0}"),
        ("a2d-qwen3", {"rope_scaling": {"rope_type": "llama3"}}, "rope_type: 'unknown|llama3"),
        ("llada2_moe", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type: 'yarn'"),
        ("illada", {"layer_norm_eps": 1e-5}, "layer_norm_eps: 1e-05"),
        ("a2d-llama", {"output_shift": 2}, "output_shift: 2; expected 0 or 1"),
        ("a2d-llama", {"mlp_bias": True}, "mlp_bias: True; this model computes False"),
        ("a2d-llama", {"rope_interleaved": True}, "rope_interleaved: True, which is not verified"),
        ("llada", {"rope_theta": None}, "lacks rope_theta"),
        ("llada", {"include_bias": True}, "include_bias: True"),
        ("llada", {"activation_type": "swiglu"}, "activation_type: 'swiglu'"),
        ("llada", {"layer_norm_type": "default"}, "layer_norm_type: 'default'"),
        ("llada", {"residual_dropout": 0.1}, "residual_dropout: 0.1"),
        ("llada", {"block_group_size": 4}, "block_group_size: 4"),
        ("llada", {"n_kv_heads": 3}, "n_heads of n_kv_heads 3"),
    ],
)
def test_a_field_that_is_not_computed_is_refused_by_name(name, changes, expected, toys, tmp_path):
    (tmp_path / "config.json").write_text((toys[name] / "config.json").read_text())
    rewrite(tmp_path / "config.json", **changes)
    with pytest.raises(DopsdError, match=expected) as refused:
        read_config(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/config.json")
    assert str(refused.value).count("config.json") == 1
    assert refused.value.exit_code == 2 and len(refused.value.lines) == 1


def test_what_is_switched_off_needs_no_name(toys: dict[str, Path], tmp_path: Path):
    raw = json.loads((toys["sdar"] / "config.json").read_text())
    off = {"new_switch": False, "new_list": [], "new_scale": None, "_from": "x"}
    (tmp_path / "config.json").write_text(json.dumps(raw | off))
    assert read_config(tmp_path).n_layers == raw["num_hidden_layers"]


def test_classes_may_be_named_oddly(toys: dict[str, Path], tmp_path: Path):
    shutil.copy(toys["llada_moe"] / "config.json", tmp_path)
    rewrite(tmp_path / "config.json", architectures="LLaDAMoEModelLM")
    assert read_config(tmp_path).model_type == "llada_moe"
    for classes in (5, None):
        rewrite(tmp_path / "config.json", architectures=classes)
        with pytest.raises(DopsdError, match="a LLaDA config must state all of them"):
            read_config(tmp_path)


def test_llada2_reads_rope_parameters(toys: dict[str, Path], tmp_path: Path):
    raw = json.loads((toys["llada2_moe"] / "config.json").read_text())
    for field in ("rope_theta", "partial_rotary_factor", "rotary_dim"):
        raw.pop(field)
    rope = {"rope_type": "default", "rope_theta": 123.0, "partial_rotary_factor": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(raw | {"rope_parameters": rope}))
    config = read_config(tmp_path)
    assert (config.rope_theta, config.rotary_dim) == (123.0, 4)


def test_a_config_that_was_written_is_read_again(toys: dict[str, Path], tmp_path: Path):
    for folder in toys.values():
        before = read_config(folder)
        before.save_pretrained(tmp_path)
        assert read_config(tmp_path).to_dict() == before.to_dict()


@pytest.mark.parametrize("mask", [2, 0])
def test_a_mask_that_is_another_special_token_is_refused(mask: int, toys, tmp_path, capsys):
    folder = shutil.copytree(toys["sdar"], tmp_path / "base")
    rewrite(folder / "config.json", mask_token_id=mask)
    assert main(["inspect", str(folder)]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "mask_token_id" in line]
    assert len(said) == 1 and f"mask_token_id {mask} of config.json" in said[0]
