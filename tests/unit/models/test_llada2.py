"""LLaDA2.0 against a literal forward pass: router, shared expert, partial rotation, blocks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hub_toys import LLADA2
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from dopsd.core.errors import DopsdError
from dopsd.models.kernels.operators import rope_tables
from dopsd.models.llada2_moe.architecture import Llada2MoeForMaskedLM
from dopsd.models.registry import read_config

Weights = dict[str, Tensor]


def made(folder: Path, **changes: object) -> Llada2MoeForMaskedLM:
    """A toy whose weights give logits of order one, and a bias that changes the choice."""
    raw = LLADA2 | {"block_size": 4, "mask_token_id": 1, "eos_token_id": 0} | changes
    (folder / "config.json").write_text(json.dumps(raw))
    torch.manual_seed(0)
    model = Llada2MoeForMaskedLM(read_config(folder)).eval()
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if p.ndim == 1:
                p.normal_(mean=float("norm" in name), std=0.3)
            else:
                p.normal_(std=p.shape[1] ** -0.5)
    return model


def literal(w: Weights, ids: Tensor) -> Tensor:
    """The logits of one text [T], in blocks of four, token by token."""
    c, eps = LLADA2, LLADA2["rms_norm_eps"]

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"]

    def fed(x: Tensor, at: str) -> Tensor:
        gate = w[f"{at}.gate_proj.weight"] @ x
        return w[f"{at}.down_proj.weight"] @ (
            gate * gate.sigmoid() * (w[f"{at}.up_proj.weight"] @ x)
        )

    def turned(x: Tensor, t: int) -> Tensor:
        out = x.clone()
        for i in range(2):  # rotary_dim 4: dimensions 0 with 2, 1 with 3
            angle = t * c["rope_theta"] ** (-2 * i / 4)
            out[i] = x[i] * math.cos(angle) - x[i + 2] * math.sin(angle)
            out[i + 2] = x[i + 2] * math.cos(angle) + x[i] * math.sin(angle)
        return out

    def mixed(x: Tensor, at: str) -> Tensor:
        scores = (w[f"{at}.gate.weight"] @ x).sigmoid()
        biased = scores + w[f"{at}.gate.expert_bias"]
        sums = [sum(sorted(biased[2 * g : 2 * g + 2].tolist())) for g in range(4)]
        kept = sorted(range(4), key=lambda g: -sums[g])[:2]
        open_to = [e for g in kept for e in (2 * g, 2 * g + 1)]
        chosen = sorted(open_to, key=lambda e: -biased[e].item())[:2]
        total = scores[chosen].sum()
        parts = [2.5 * scores[e] / total * fed(x, f"{at}.experts.{e}") for e in chosen]
        return parts[0] + parts[1] + fed(x, f"{at}.shared_experts")

    x = [w["model.word_embeddings.weight"][i] for i in ids]
    length = len(x)
    for layer in range(3):
        at = f"model.layers.{layer}"
        rows = [
            w[f"{at}.attention.query_key_value.weight"] @ norm(z, f"{at}.input_layernorm")
            for z in x
        ]
        q = [
            [norm(r[8 * h : 8 * h + 8], f"{at}.attention.query_layernorm") for h in range(4)]
            for r in rows
        ]
        k = [
            [norm(r[32 + 8 * h : 40 + 8 * h], f"{at}.attention.key_layernorm") for h in range(2)]
            for r in rows
        ]
        seen = []
        for t in range(length):
            end = min(length, t // 4 * 4 + 4)  # of the block of t
            heads = []
            for h in range(4):
                query = turned(q[t][h], t)
                scores = torch.stack(
                    [query @ turned(k[s][h // 2], s) / math.sqrt(8) for s in range(end)]
                )
                values = torch.stack(
                    [rows[s][48 + 8 * (h // 2) : 56 + 8 * (h // 2)] for s in range(end)]
                )
                heads.append(scores.softmax(0) @ values)
            seen.append(x[t] + w[f"{at}.attention.dense.weight"] @ torch.cat(heads))
        after = [norm(z, f"{at}.post_attention_layernorm") for z in seen]
        x = [
            z + (mixed(h, f"{at}.mlp") if layer else fed(h, f"{at}.mlp"))
            for z, h in zip(seen, after, strict=True)
        ]
    return torch.stack([w["lm_head.weight"] @ norm(z, "model.norm") for z in x])


def test_logits_are_those_of_the_literal_forward(tmp_path: Path):
    model = made(tmp_path)
    ids = torch.randint(2, 100, (2, 10), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = model(ids).logits
        padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
        keep = torch.tensor([[False] * 3 + [True] * 10] * 2)
        beside_padding = model(padded, keep).logits[:, 3:]
        expected = torch.stack([literal(dict(model.state_dict()), row) for row in ids])
    assert 0.5 < expected.std() < 3
    assert (ours - expected).abs().max() <= 1e-5
    assert (beside_padding - expected).abs().max() <= 1e-5


def test_the_bias_counts_in_the_choice_of_experts_alone(tmp_path: Path):
    router = made(tmp_path).model.layers[1].mlp.gate
    tokens = torch.randn(50, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        experts, weights = router(tokens)
        scores = (tokens @ router.weight.T).sigmoid().gather(1, experts)
        assert torch.allclose(weights, 2.5 * scores / scores.sum(1, keepdim=True))
        router.expert_bias.copy_(torch.tensor([9.0, 9, 0, 0, 0, 0, 0, 0]))
        assert router(tokens)[0].sort(1).values.tolist() == [[0, 1]] * 50


def test_one_expert_a_token_keeps_its_score_as_weight(tmp_path: Path):
    router = made(tmp_path, num_experts_per_tok=1).model.layers[1].mlp.gate
    tokens = torch.randn(50, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        experts, weights = router(tokens)
        scores = (tokens @ router.weight.T).sigmoid().gather(1, experts)
    assert torch.equal(weights, 2.5 * scores) and weights.std() > 0.1


@pytest.mark.parametrize(
    ("dim", "factor", "expected"),
    [
        (4, "absent", 4),  # half of head_dim 8, as published without a factor
        (8, "absent", "rotary_dim 8"),
        (8, 1.0, 8),
        (4, 1.0, "partial_rotary_factor 1.0"),
        ("absent", 0.25, 2),
        (None, 0.5, "lacks rotary_dim"),
    ],
)
def test_the_rotated_width_is_the_published_classs(dim, factor, expected, tmp_path: Path):
    raw = LLADA2 | {"rotary_dim": dim, "partial_rotary_factor": factor}
    raw = {name: value for name, value in raw.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    if isinstance(expected, int):
        assert read_config(tmp_path).rotary_dim == expected
    else:
        with pytest.raises(DopsdError, match=expected):
            read_config(tmp_path)


def published_block(x: Tensor, w: Weights, at: str, is_dense: bool, mask: Tensor) -> Tensor:
    """A layer in bfloat16, operator by operator as the published class rounds."""

    def norm(x: Tensor, name: str) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + LLADA2["rms_norm_eps"])
        return w[f"{at}.{name}.weight"] * wide.to(x.dtype)

    def fed(x: Tensor, name: str) -> Tensor:
        gate, up, down = (w[f"{at}.{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    def turned(x: Tensor) -> Tensor:
        rates = LLADA2["rope_theta"] ** -(torch.arange(0, 4, 2) / 4)
        angles = torch.arange(x.shape[2])[:, None] * rates
        cos, sin = (torch.cat([f(angles)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        left = x[..., :4]
        half = torch.cat([-left[..., 2:], left[..., :2]], -1)
        return torch.cat([left * cos + half * sin, x[..., 4:]], -1)

    h = norm(x, "input_layernorm")
    heads = linear(h, w[f"{at}.attention.query_key_value.weight"]).unflatten(-1, (8, 8))
    q, k, v = (part.transpose(1, 2) for part in heads.split([4, 2, 2], -2))
    q, k = turned(norm(q, "attention.query_layernorm")), turned(norm(k, "attention.key_layernorm"))
    k, v = (z.repeat_interleave(2, 1) for z in (k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    x = x + linear(out, w[f"{at}.attention.dense.weight"])
    h = norm(x, "post_attention_layernorm")
    if is_dense:
        return x + fed(h, "mlp")
    tokens = h[0]
    scores = linear(tokens.float(), w[f"{at}.mlp.gate.weight"].float()).sigmoid()
    biased = scores + w[f"{at}.mlp.gate.expert_bias"]
    groups = biased.view(-1, 4, 2).sum(-1).topk(2).indices
    is_open = torch.zeros(len(tokens), 4).scatter(1, groups, 1).repeat_interleave(2, 1).bool()
    chosen = biased.masked_fill(~is_open, -torch.inf).topk(2).indices
    share = scores.gather(1, chosen)
    share = share / (share.sum(-1, keepdim=True) + 1e-20) * 2.5
    every = torch.stack([fed(tokens, f"mlp.experts.{e}") for e in range(8)], 1)
    parts = every.take_along_dim(chosen[..., None], 1).float().mul(share[..., None])
    return x + (parts.sum(1).to(x.dtype)[None] + fed(h, "mlp.shared_experts"))


def test_a_layer_in_bfloat16_is_the_published_one_bit_for_bit(tmp_path: Path):
    model = made(tmp_path).to(torch.bfloat16)
    for layer in model.model.layers[1:]:  # the class keeps the bias in float32
        layer.mlp.gate.expert_bias = layer.mlp.gate.expert_bias.float()
    w, generator = dict(model.state_dict()), torch.Generator().manual_seed(3)
    x = torch.randn(1, 12, 32, generator=generator).bfloat16()
    block = torch.arange(12) // 4
    mask = (block <= block[:, None])[None, None]
    rope = rope_tables(12, 4, LLADA2["rope_theta"], x.device)
    with torch.no_grad():
        for number, layer in enumerate(model.model.layers):
            ours = layer(x, rope, mask)
            theirs = published_block(x, w, f"model.layers.{number}", number == 0, mask)
            assert torch.equal(ours, theirs), number


def test_files_have_the_published_names_and_load_again(tmp_path: Path):
    model = made(tmp_path)
    model.save_pretrained(tmp_path)
    names = set(model.state_dict())
    assert {
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.mlp.gate.expert_bias",
        "model.layers.2.mlp.experts.7.down_proj.weight",
        "model.layers.2.mlp.shared_experts.up_proj.weight",
        "model.layers.1.attention.query_key_value.weight",
        "model.layers.1.attention.key_layernorm.weight",
        "lm_head.weight",
    } <= names
    again = Llada2MoeForMaskedLM.from_pretrained(tmp_path)
    assert all(torch.equal(again.state_dict()[name], p) for name, p in model.state_dict().items())


@pytest.mark.full
def test_at_the_size_of_mini_it_has_16_billion_parameters_and_1_4_in_use(tmp_path: Path):
    raw = LLADA2 | {"head_dim": 128, "hidden_size": 2048, "intermediate_size": 5120}
    raw |= {"moe_intermediate_size": 512, "n_group": 8, "num_attention_heads": 16}
    raw |= {"num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 20}
    raw |= {"num_key_value_heads": 4, "rotary_dim": 64, "topk_group": 4, "vocab_size": 157184}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = read_config(tmp_path)
    with torch.device("meta"):
        model = Llada2MoeForMaskedLM(config)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    assert round(sum(sizes.values()) / 1e9, 1) == 16.3
    assert round((sum(sizes.values()) - experts + experts * 8 / 256) / 1e9, 1) == 1.4
    assert (config.mask_token_id, config.eos_token_id, config.block_size) == (156895, 156892, 32)
