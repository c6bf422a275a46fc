"""Autoregressive checkpoints as diffusion models: weights, mask, shift, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from autoregressive_toys import CHATML, autoregressive, save_source, write_gguf
from gguf import GGMLQuantizationType, GGUFReader, RopeScalingType, dequantize
from safetensors.torch import load_file, save_file
from toys import rewrite
from transformers import AutoTokenizer, LlamaForCausalLM

from dopsd.core.errors import DopsdError
from dopsd.models.a2d.convert import Form, convert, converted_parts, read_source
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.models.registry import read_config
from dopsd.models.template_date import is_dated

SHIFTED = Form(1, None, torch.float32)
IDS = torch.tensor([[12, 40, 7, 33, 25]])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("spare", "tied"), [(0, True), (0, False), (3, True)])
def test_the_weights_stay_and_the_mask_has_a_row(kind: str, spare: int, tied: bool, tmp_path: Path):
    model = save_source(tmp_path / "source", kind, spare, tied)
    count = convert(tmp_path / "source", tmp_path / "out", SHIFTED)
    policy = load_policy(ModelConfig(path=str(tmp_path / "out")), None, 0)
    rows, tokens = model.config.vocab_size, model.config.vocab_size - spare
    assert (policy.mask_id, policy.vocabulary) == (tokens, max(rows, tokens + 1))
    assert count == policy.core.num_parameters()
    with torch.no_grad():  # in one layer the last position sees the same with any mask
        ours = policy.head(policy.core.trunk(IDS))[0, -1]
        theirs = model(IDS).logits[0, -1]
        aligned = policy.head(policy.hidden(torch.cat([IDS, IDS[:, :1]], 1), None)).shape
    assert (ours[:tokens] - theirs[:tokens]).abs().max() <= 1e-5
    assert aligned == (1, 6, policy.vocabulary)
    embedding = model.get_input_embeddings().weight
    mask = policy.core.get_input_embeddings().weight[policy.mask_id]
    assert (mask - embedding[:tokens].mean(0)).abs().max() <= 1e-6
    assert policy.output_shift == 1


ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 4}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])  # as of transformers 5 and 4
def test_the_angles_of_llama_3_are_those_of_transformers(key: str, tmp_path: Path):
    save_source(tmp_path / "source", "llama")
    plain = {"rope_theta": 500.0, "rope_parameters": None, "rope_scaling": None}
    rewrite(tmp_path / "source/config.json", **plain | {key: ROPE})
    model = LlamaForCausalLM.from_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out", SHIFTED)
    policy = load_policy(ModelConfig(path=str(tmp_path / "out")), None, 0)
    ids = torch.arange(10, 34)[None]
    with torch.no_grad():
        ours, theirs = policy.head(policy.core.trunk(ids))[0, -1], model(ids).logits[0, -1]
        rewrite(tmp_path / "out/config.json", **plain)
        plainly = load_policy(ModelConfig(path=str(tmp_path / "out")), None, 0)
        others = plainly.head(plainly.core.trunk(ids))[0, -1]
    assert (ours[:-1] - theirs).abs().max() <= 1e-5 < 1e-2 < (others - ours).abs().max()


def test_a_token_in_reserve_becomes_the_mask(tmp_path: Path):
    model = save_source(tmp_path / "source", "llama")
    convert(tmp_path / "source", tmp_path / "out", Form(0, "<|mdm_mask|>", torch.bfloat16))
    config = read_config(tmp_path / "out")
    assert (config.mask_token_id, config.output_shift) == (1, 0)
    weights = load_file(tmp_path / "out/model.safetensors")
    old = model.get_input_embeddings().weight.detach()
    others = torch.cat([old[:1], old[2:]]).mean(0)
    assert (weights["model.embed_tokens.weight"][1].float() - others).abs().max() <= 1e-2
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_a_gguf_file_is_read_bit_for_bit(tmp_path: Path):
    model = autoregressive("llama", 261)
    tokens = write_gguf(tmp_path / "toy.gguf", model)
    convert(tmp_path / "toy.gguf", tmp_path / "out", Form(1, "<empty_output>", torch.float32))
    weights = load_file(tmp_path / "out/model.safetensors")
    read = {
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type))
        for tensor in GGUFReader(tmp_path / "toy.gguf").tensors
    }
    down = weights["model.layers.0.mlp.gate_proj.weight"].numpy()
    assert np.array_equal(down, read["blk.0.ffn_gate.weight"].reshape(down.shape))
    keys = weights["model.layers.0.self_attn.k_proj.weight"].numpy()
    pairs = read["blk.0.attn_k.weight"].reshape(keys.shape)
    for head in range(2):
        for i in range(4):
            for half in range(2):
                assert np.array_equal(keys[head * 8 + half * 4 + i], pairs[head * 8 + 2 * i + half])
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name != "model.embed_tokens.weight":
                tensor.copy_(weights[name])
    policy = load_policy(ModelConfig(path=str(tmp_path / "out")), None, 0)
    with torch.no_grad():
        gap = policy.head(policy.core.trunk(IDS))[0, -1] - model(IDS).logits[0, -1]
    assert gap[4:].abs().max() <= 1e-5
    text = policy.text.encode([{"role": "user", "content": "cab12"}])
    assert [tokens[i] for i in text.tolist()][6:10] == ["c", "ab", "1", "2"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' cannot be adapted; those that can are llama"),
        ({"mlp_bias": True}, "mlp_bias: True; this model computes False"),
        ({"tie_word_embeddings": False}, r"lm_head\.weight is missing, and config\.json makes it"),
        ({"intermediate_size": 64}, r"mlp\..*_proj\.weight is \(.*48.*\), and config\.json makes"),
        ({"num_hidden_layers": 2}, r"model\.layers\.1\..* is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type: 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "lacks factor, low_freq"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict, expected: str, tmp_path: Path):
    save_source(tmp_path / "source", "llama")
    rewrite(tmp_path / "source/config.json", **changes)
    with pytest.raises(DopsdError, match=expected):
        convert(tmp_path / "source", tmp_path / "out", SHIFTED)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("also", "expected"),
    [
        (lambda w: w.add_rope_scaling_type(RopeScalingType.LINEAR), "scaling.type is linear"),
        (lambda w: w.add_tensor("odd", np.zeros(1, np.float32)), "has the tensor odd, which"),
        (lambda w: w.add_tensor("a.attn_q.weight", np.zeros(1, np.float32)), "tensor a.attn_q"),
        (
            lambda w: w.add_tensor(
                "output.weight", np.zeros((261, 40), np.uint8), raw_dtype=GGMLQuantizationType.Q8_1
            ),
            "lm_head.weight is Q8_1, which is not read",
        ),
    ],
)
def test_what_is_not_read_of_a_gguf_file_is_refused(also, expected: str, tmp_path: Path):
    write_gguf(tmp_path / "toy.gguf", autoregressive("llama", 261), also)
    with pytest.raises(DopsdError, match=expected):
        convert(tmp_path / "toy.gguf", tmp_path / "out", Form(1, "<empty_output>", torch.float32))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mask", ["7", "<|im_start|>", "<|endoftext|>", "<|pad|>"])
def test_a_mask_that_is_in_use_is_refused(mask: str, tmp_path: Path):
    save_source(tmp_path / "source", "llama")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "source")
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.save_pretrained(tmp_path / "source")
    if mask not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [mask]})
        tokenizer.chat_template = CHATML
        tokenizer.save_pretrained(tmp_path / "source")
    with pytest.raises(
        DopsdError, match=r"is .*; name a special token in reserve \(.*<\|mdm_mask"
    ) as e:
        converted_parts(tmp_path / "source", Form(1, mask, torch.float32))
    assert ("an ordinary token" in str(e.value)) == (mask == "7")


def test_a_source_without_chats_or_files_is_refused(tmp_path: Path):
    with pytest.raises(DopsdError, match=r"adapt.source: .*no checkpoint folder and no GGUF"):
        convert(tmp_path / "none", tmp_path / "out", SHIFTED)
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(DopsdError, match="not a whole GGUF file"):
        convert(tmp_path / "no.gguf", tmp_path / "out", SHIFTED)
    save_source(tmp_path / "source", "qwen3")
    (tmp_path / "source/tokenizer.json").rename(tmp_path / "kept")
    with pytest.raises(DopsdError, match=r"no tokenizer\.json; copy it"):
        convert(tmp_path / "source", tmp_path / "out", SHIFTED)
    (tmp_path / "kept").rename(tmp_path / "source/tokenizer.json")
    (tmp_path / "source/chat_template.jinja").unlink(missing_ok=True)
    raw = json.loads((tmp_path / "source/tokenizer_config.json").read_text())
    raw.pop("chat_template", None)
    (tmp_path / "source/tokenizer_config.json").write_text(json.dumps(raw))
    with pytest.raises(DopsdError, match="no chat template"):
        convert(tmp_path / "source", tmp_path / "out", SHIFTED)


def test_a_model_that_can_be_adapted_is_refused_as_a_base_with_the_way(tmp_path: Path):
    save_source(tmp_path, "qwen2")
    with pytest.raises(DopsdError, match=r"'qwen2' is not supported; .*`dopsd adapt` makes a base"):
        read_config(tmp_path)


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_head_that_config_json_ties_away_is_refused_unless_it_is_a_copy(change, tmp_path: Path):
    """As after a merge that changed the head: it would be dropped without a word."""
    save_source(tmp_path / "source", "llama")
    file = tmp_path / "source/model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + change
    save_file(weights, file, metadata={"format": "pt"})
    if not change:
        assert read_source(tmp_path / "source").shapes
        return
    with pytest.raises(DopsdError, match=r"lm_head\.weight differs from model\.embed_tokens"):
        read_source(tmp_path / "source")


def test_a_date_in_the_template_is_fixed_in_the_converted_folder(tmp_path: Path):
    save_source(tmp_path / "source", "llama")
    file = tmp_path / "source/chat_template.jinja"
    file.write_text("{{ strftime_now('%d %b %Y') }} {{ strftime_now(bos_token) }}" + CHATML)
    convert(tmp_path / "source", tmp_path / "base", SHIFTED)
    text = (tmp_path / "base/chat_template.jinja").read_text()
    assert text.startswith("{% macro strftime_now(format)") and not is_dated(tmp_path / "base")
    assert is_dated(tmp_path / "source")
