"""LLaDA2.0 against a literal forward pass: router, shared expert, partial rotation, blocks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hub_toys import LLADA2
from torch import Tensor

from dopsd.core.errors import DopsdError
from dopsd.models.architecture import read_config
from dopsd.models.llada2_moe.architecture import Llada2MoeForMaskedLM

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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"score_function": "softmax"}, "score_function: 'softmax'"),
        ({"rotary_dim": None}, "lacks rotary_dim"),
        ({"n_group": 3}, "num_experts 8 must be n_group 3 times"),
        ({"topk_group": 5}, "topk_group 5 at most n_group"),
    ],
)
def test_a_router_that_is_not_computed_is_refused(changes: dict, expected: str, tmp_path: Path):
    with pytest.raises(DopsdError, match=expected):
        made(tmp_path, **changes)


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
