"""Architectures made of transformers' decoders, against a literal forward pass, in hub format."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hub_toys import HUB, NAMES, SHIFTED, save_hub
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from toys import rewrite
from transformers import PreTrainedTokenizerFast

from dopsd.core.errors import DopsdError
from dopsd.models.checkpoint_files import file_values, parameters, whole_tensors
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.models.registry import read_config
from dopsd.models.text import build_tokenizer, prompt_text


def literal(raw: dict, w: dict[str, Tensor], ids: Tensor, keep: Tensor) -> Tensor:
    """The states of a Llama-like decoder, a head at a time; blocks count from its first token."""
    size = raw.get("block_size") or ids.shape[1]
    heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
    width = raw.get("head_dim", raw["hidden_size"] // heads)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + raw["rms_norm_eps"]).sqrt() * w[name]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))

    def turn(x: Tensor) -> Tensor:  # [T, width]
        out = torch.empty_like(x)
        for t in range(len(x)):
            for i in range(width // 2):
                angle = t * raw["rope_theta"] ** (-2 * i / width)
                a, b = x[t, i], x[t, i + width // 2]
                out[t, i] = a * math.cos(angle) - b * math.sin(angle)
                out[t, i + width // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def fed(x: Tensor, at: str) -> Tensor:
        gate = linear(x, f"{at}.gate_proj")
        return linear(gate * gate.sigmoid() * linear(x, f"{at}.up_proj"), f"{at}.down_proj")

    def mixed(x: Tensor, at: str) -> Tensor:  # a softmax over all experts; the first few count
        out = torch.zeros_like(x)
        for t, shares in enumerate(linear(x, f"{at}.gate").softmax(-1)):
            for e in shares.argsort(descending=True)[: raw["num_experts_per_tok"]]:
                out[t] += shares[e] * fed(x[t], f"{at}.experts.{e}")
        return out

    rows = []
    for row, real in zip(ids, keep, strict=True):
        first = real.tolist().index(True)
        blocks = torch.tensor([(i - first) // size for i in range(len(row))])
        is_later = blocks > blocks[:, None]
        x = w["model.embed_tokens.weight"][row]
        for layer in range(raw["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            h = norm(x, at + "input_layernorm.weight")
            q, k, v = (linear(h, f"{at}self_attn.{name}_proj") for name in "qkv")
            seen = []
            for head in range(heads):
                group = head // (heads // kv_heads)
                mine = q[:, head * width : (head + 1) * width]
                key, value = (z[:, group * width : (group + 1) * width] for z in (k, v))
                if f"{at}self_attn.q_norm.weight" in w:
                    mine = norm(mine, f"{at}self_attn.q_norm.weight")
                    key = norm(key, f"{at}self_attn.k_norm.weight")
                scores = turn(mine) @ turn(key).T / math.sqrt(width)
                scores = scores.masked_fill(~real | is_later, -torch.inf)
                seen.append(scores.softmax(-1).nan_to_num() @ value)
            x = x + linear(torch.cat(seen, -1), f"{at}self_attn.o_proj")
            h = norm(x, at + "post_attention_layernorm.weight")
            x = x + (mixed if f"{at}mlp.gate.weight" in w else fed)(h, f"{at}mlp")
        rows.append(norm(x, "model.norm.weight"))
    return torch.stack(rows)


def texts(padding: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(2, 100, (2, 9), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0, :padding] = False
    return ids, keep


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_literal_forward(name: str, padding: int, tmp_path: Path):
    w = save_hub(tmp_path, name)
    raw = json.loads((tmp_path / "config.json").read_text())
    policy, (ids, keep) = load_policy(ModelConfig(path=str(tmp_path)), None, 0), texts(padding)
    with torch.no_grad():
        hidden = policy.hidden(ids, keep if padding else None)
        ours = policy.head(hidden)
    states = literal(raw, w, ids, keep)
    if name in SHIFTED:
        states = torch.cat([states[:, :1], states[:, :-1]], 1)
    head = w["model.embed_tokens.weight" if raw["tie_word_embeddings"] else "lm_head.weight"]
    real = keep & keep.roll(1, 1) if name in SHIFTED else keep
    expected = states @ head.T
    assert 0.5 < expected[real].std() < 3
    assert (ours - expected)[real].abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("Dream", 4, "model.block_size: 4: in Dream every token sees every other"),
        ("sdar", None, "no block_size, and sdar attends in blocks; set model.block_size"),
    ],
)
def test_attention_that_an_architecture_has_not_is_refused(name, size, expected, tmp_path):
    save_hub(tmp_path, name)
    rewrite(tmp_path / "config.json", block_size=None)
    with pytest.raises(DopsdError, match=expected):
        load_policy(ModelConfig(path=str(tmp_path), block_size=size), None, 0)


def test_the_settings_make_a_block_causal_model_of_tiny_a2d(tmp_path: Path):
    save_hub(tmp_path, "a2d-qwen3")
    ids = texts(0)[0]
    found = []
    for size in (None, 3):
        policy = load_policy(ModelConfig(path=str(tmp_path), block_size=size), None, 0)
        with torch.no_grad():
            found.append(policy.hidden(ids, None))
            shorter = policy.hidden(ids[:, :6], None)
    assert (found[0] - found[1]).abs().max() > 0.1
    assert policy.attention_pattern == "block_causal"
    assert (found[1][:, :6] - shorter).abs().max() <= 1e-5


@pytest.mark.parametrize("name", [name for name in NAMES if HUB[name]["tie_word_embeddings"]])
def test_a_tied_head_that_the_files_repeat_is_no_unknown_tensor(name: str, tmp_path: Path):
    w = save_hub(tmp_path, name)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    last = sorted(set(index["weight_map"].values()))[-1]
    embedding = w["model.embed_tokens.weight"]
    tensors = load_file(tmp_path / last) | {"lm_head.weight": embedding.clone()}
    index["weight_map"]["lm_head.weight"] = last
    save_file(tensors, tmp_path / last, {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    assert torch.equal(policy.core.get_input_embeddings().weight, embedding)
    found = dict(file_values(policy.core, tmp_path))  # as training of all weights reads a base
    assert found.keys() == whole_tensors(policy.core).keys()
    save_file(tensors | {"lm_head.weight": embedding + 1}, tmp_path / last, {"format": "pt"})
    with pytest.raises(DopsdError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)


@pytest.mark.parametrize("name", NAMES)
def test_recomputed_activations_give_the_same_gradients(name: str, tmp_path: Path):
    save_hub(tmp_path, name)
    lora = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["q_proj", "o_proj"])
    found = []
    for is_recomputing in (False, True):
        policy = load_policy(ModelConfig(path=str(tmp_path)), lora, 0)
        with torch.no_grad():
            for p in policy.trainable().values():
                p.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
        if is_recomputing:
            policy.use_gradient_checkpointing()
        policy.head(policy.hidden(*texts(3))).logsumexp(-1).sum().backward()
        found.append([p.grad for p in policy.trainable().values()])
    assert all(a.abs().max() > 0 and torch.equal(a, b) for a, b in zip(*found, strict=True))


QWEN3_TEMPLATE = (  # the parts of Qwen3's that matter here
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if"
    " enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif"
    " %}{% endif %}"
)


def qwen3_tokenizer(folder: Path) -> None:
    """Write a tokenizer with Qwen3's special tokens and template, and without a mask."""
    raw = json.loads(build_tokenizer().backend_tokenizer.to_str())
    raw["added_tokens"] = []
    raw["model"]["vocab"] = {chr(33 + i): i for i in range(90)}
    raw["model"]["unk_token"] = "!"
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(raw)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = QWEN3_TEMPLATE
    made.save_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "thought"),
    [("a2d-qwen3", "<think></think>"), ("sdar", ""), ("llada2_moe", ""), ("illada", "")],
)
def test_a_prompt_begins_with_an_empty_thought_only_where_the_base_has_seen_it(
    name: str, thought: str, tmp_path: Path
):
    """SDAR's published samplers and evaluations ask Qwen3's template for nothing."""
    save_hub(tmp_path, name)
    qwen3_tokenizer(tmp_path)
    tokenizer, config = PreTrainedTokenizerFast.from_pretrained(tmp_path), read_config(tmp_path)
    asked = prompt_text(tokenizer, config, [{"role": "user", "content": "1+1?"}])
    assert "".join(asked.split()).endswith(f"1+1?<|im_end|><|im_start|>assistant{thought}")


def test_a_tokenizer_without_mask_gets_the_familys(tmp_path: Path):
    save_hub(tmp_path, "a2d-qwen3")
    qwen3_tokenizer(tmp_path)
    # 90 characters, then end of turn, padding, start of turn; so the mask is token 93
    rewrite(tmp_path / "config.json", mask_token_id=93, eos_token_id=90)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    special = "<|im_end|><|endoftext|><|im_start|><|mask|>"
    assert policy.tokenizer(special, add_special_tokens=False)["input_ids"] == [*range(90, 94)]
    assert policy.suppress_tokens == [*range(92, 112)]
    asked = policy.tokenizer.decode(policy.text.encode([{"role": "user", "content": "1+1"}]))
    expected = "<|im_start|>user1+1<|im_end|><|im_start|>assistant<think></think>"
    assert asked.replace("!", "") == expected
    rewrite(tmp_path / "config.json", mask_token_id=95)
    with pytest.raises(
        DopsdError, match="would be token 93 of this tokenizer, but the model's is 95"
    ):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)


def test_a_damaged_file_has_no_number_of_parameters_but_one_line(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00damaged")
    with pytest.raises(DopsdError, match=r"model\.safetensors"):
        parameters([path])
