"""The native LLaDA against a literal forward pass, its shape at 8B, attention and memory switches, and the adapter."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dopsd.config import Lora, Model
from dopsd.errors import DopsdError
from dopsd.models import load_policy
from dopsd.models.llada import LladaConfig, LladaForMaskedLM
from dopsd.models.lora import adapter_tensors, block_modules, load_adapter
from dopsd.models.tiny import build_tokenizer

SHAPE = {"d_model": 32, "n_heads": 4, "n_layers": 2, "mlp_hidden_size": 48, "vocab_size": 20, "embedding_size": 24}
IDS = {"max_sequence_length": 64, "rope_theta": 500.0, "rms_norm_eps": 1e-5, "mask_token_id": 1, "eos_token_id": 0}


def toy(kv_heads: int = 4, is_tied: bool = False) -> LladaForMaskedLM:
    torch.manual_seed(0)
    model = LladaForMaskedLM(LladaConfig(**SHAPE, **IDS, n_kv_heads=kv_heads, weight_tying=is_tied))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(1.0, 0.1) if p.dim() == 1 else p.normal_(std=0.2)
    return model


def literal(model: LladaForMaskedLM, ids: Tensor, keep: Tensor) -> Tensor:
    """LLaDA's forward pass written out, one head at a time, in float32."""
    w = {name: p.detach() for name, p in model.state_dict().items()}
    c = model.config
    width, group = c.d_model // c.n_heads, c.n_heads // c.n_kv_heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * w[name]

    def turn(x: Tensor) -> Tensor:  # [T, width]
        out = torch.empty_like(x)
        for t in range(len(x)):
            for i in range(width // 2):
                angle = t * c.rope_theta ** (-2 * i / width)
                a, b = x[t, i], x[t, i + width // 2]
                out[t, i] = a * math.cos(angle) - b * math.sin(angle)
                out[t, i + width // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    rows = []
    for row, real in zip(ids, keep, strict=True):
        x = w["model.transformer.wte.weight"][row]
        for layer in range(c.n_layers):
            at = f"model.transformer.blocks.{layer}."
            h = norm(x, at + "attn_norm.weight")
            q, k, v = (h @ w[f"{at}{name}_proj.weight"].T for name in "qkv")
            heads = []
            for head in range(c.n_heads):
                mine, theirs = (
                    slice(head * width, (head + 1) * width),
                    slice(head // group * width, (head // group + 1) * width),
                )
                scores = turn(q[:, mine]) @ turn(k[:, theirs]).T / math.sqrt(width)
                heads.append(scores.masked_fill(~real, -torch.inf).softmax(-1) @ v[:, theirs])
            x = x + torch.cat(heads, -1) @ w[at + "attn_out.weight"].T
            h = norm(x, at + "ff_norm.weight")
            gate = h @ w[at + "ff_proj.weight"].T
            x = x + (gate * gate.sigmoid() * (h @ w[at + "up_proj.weight"].T)) @ w[at + "ff_out.weight"].T
        out = "wte" if c.weight_tying else "ff_out"
        rows.append(norm(x, "model.transformer.ln_f.weight") @ w[f"model.transformer.{out}.weight"].T)
    return torch.stack(rows)


IDS_IN = torch.randint(0, 20, (2, 9), generator=torch.Generator().manual_seed(1))
KEEP = torch.ones(2, 9, dtype=torch.bool)
KEEP[0, :3] = False  # padded on the left


@pytest.mark.parametrize(("kv_heads", "is_tied"), [(4, False), (2, False), (1, True)])
def test_logits_are_those_of_the_literal_forward_pass(kv_heads: int, is_tied: bool):
    model = toy(kv_heads, is_tied)
    with torch.no_grad():
        wanted = literal(model, IDS_IN, KEEP)
        assert 1 < wanted[KEEP].abs().max() < 10  # logits as a trained model has them
        assert (model(IDS_IN, KEEP).logits - wanted)[KEEP].abs().max() <= 1e-5
        half = model.bfloat16()(IDS_IN, KEEP).logits.float()
    assert (half - wanted)[KEEP].norm() / wanted[KEEP].norm() <= 2e-2


def test_at_full_size_the_names_and_the_count_are_the_published_ones():
    with torch.device("meta"):
        model = LladaForMaskedLM(LladaConfig())
    layer = ("attn_norm", "ff_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")
    names = {f"model.transformer.{name}.weight" for name in ("wte", "ln_f", "ff_out")}
    names |= {f"model.transformer.blocks.{i}.{name}.weight" for i in range(32) for name in layer}
    assert model.state_dict().keys() == names and len(names) == 291
    assert sum(p.numel() for p in model.parameters()) == 8_015_581_184


def test_flash_attention_gets_the_flat_mask_and_never_a_causal_one(monkeypatch):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen = []

    def recording(module, query, key, value, attention_mask, **options):
        seen.append((query.shape, key.shape, attention_mask, options))
        return value.repeat_interleave(module.num_key_value_groups, 1).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", recording)
    model = toy(kv_heads=2)
    model.config._attn_implementation = "flash_attention_2"
    model(IDS_IN, KEEP)
    assert len(seen) == 2 and seen[0][0] == (2, 4, 9, 8) and seen[0][1] == (2, 2, 9, 8)
    assert torch.equal(seen[0][2], KEEP) and seen[0][3] == {"is_causal": False}


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")
def test_recomputed_activations_give_the_same_gradients():
    plain, saving = toy(), toy()
    saving.gradient_checkpointing_enable({"use_reentrant": False})
    saving.train()
    for model in (plain, saving):
        model(IDS_IN, KEEP).logits[KEEP].square().sum().backward()
    assert all(block.gradient_checkpointing for block in saving.model.transformer["blocks"])
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), saving.parameters(), strict=True))


def test_left_padding_with_a_mask_changes_nothing():
    model = toy()
    ids = torch.randint(0, 20, (1, 7))
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], 1)
    mask = torch.tensor([[False] * 4 + [True] * 7])
    with torch.no_grad():
        assert torch.allclose(model(padded, mask).logits[:, 4:], model(ids).logits, atol=1e-4)


def test_the_tokenizer_is_one_token_a_character_and_a_tag():
    tokenizer = build_tokenizer()
    text = "<reasoning>12 a\n</reasoning><answer>3</answer>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + 5 + 1 + 1 + 1 + 1
    assert tokenizer.decode(ids) == text
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": " 12 "}], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|startoftext|><|user|>12<|assistant|>"
    assert tokenizer.pad_token_id == tokenizer.eos_token_id != tokenizer.mask_token_id


def test_special_tokens_but_the_end_of_text_can_never_be_sampled(prepared: Path):
    policy = load_policy(Model(path=str(prepared / "base")), None, 0)
    assert policy.mask_id in policy.banned_ids and policy.eos_id not in policy.banned_ids
    assert len(policy.banned_ids) == 6  # mask, start of text, three roles, the sign for unknown characters


def test_lora_adapts_blocks_and_never_the_head(prepared: Path):
    lora = Lora(r=2, alpha=2, dropout=0.0, targets=["ff_out", "q_proj"])
    policy = load_policy(Model(path=str(prepared / "base")), lora, 0)
    names = adapter_tensors(policy.adapted)
    assert len(names) == 2 * 2 * 2 and all(".blocks." in name for name in names)
    assert block_modules(toy()) == ["attn_out", "ff_out", "ff_proj", "k_proj", "q_proj", "up_proj", "v_proj"]
    with pytest.raises(DopsdError, match="not those of this LoRA config"):
        load_adapter(policy.adapted, dict(list(names.items())[1:]))


def test_adapters_start_as_the_base_and_differ_by_seed_only_in_a(prepared: Path):
    lora, model = Lora(r=2, alpha=2, dropout=0.0), Model(path=str(prepared / "base"))
    first, second = (adapter_tensors(load_policy(model, lora, seed).adapted) for seed in (0, 1))
    assert all(not t.any() for name, t in first.items() if "lora_B" in name)
    assert all(not torch.equal(t, second[name]) for name, t in first.items() if "lora_A" in name)
