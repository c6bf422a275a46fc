"""The native LLaDA against a literal forward pass; its attention, checkpointing and size."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_decoders
import torch
from torch import Tensor
from toys import save_toy, toy
from transformers import AutoModelForMaskedLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaBlock, LladaForMaskedLM
from dopsd.models.llm_policy import load_policy

LORA = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["q_proj", "ff_out"])


PARTS = {  # names of a layer, as of transformers' decoders
    "attn_norm": "input_layernorm",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
} | {f"{name}_proj": f"self_attn.{name}_proj" for name in "qkv"}
OTHERS = {"wte": "embed_tokens", "ln_f": "norm", "ff_out": "lm_head"}


def literal(
    model: LladaForMaskedLM, ids: Tensor, keep: Tensor, kind: torch.dtype = torch.float32
) -> Tensor:
    """LLaDA's forward pass written out, in the precision `kind`."""
    w = {}
    for name, p in model.state_dict().items():
        *layer, part, _ = name.removeprefix("model.transformer.").split(".")
        found = f"layers.{layer[1]}.{PARTS[part]}" if layer else OTHERS[part]
        w[f"model.{found}.weight"] = p.detach().to(kind)
    c = model.config
    raw = {"num_attention_heads": c.n_heads, "num_key_value_heads": c.n_kv_heads}
    raw |= {"hidden_size": c.d_model, "num_hidden_layers": c.n_layers}
    raw |= {"rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta}
    head = w[f"model.{'embed_tokens' if c.weight_tying else 'lm_head'}.weight"]
    return test_decoders.literal(raw, w, ids, keep) @ head.T


def texts(padding: int = 3) -> tuple[Tensor, Tensor]:
    ids = torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0, :padding] = False
    return ids, keep


@pytest.mark.parametrize(
    ("kv_heads", "is_tied", "padding"),
    [(4, False, 0), (4, False, 3), (4, True, 3), (2, False, 3), (1, True, 0), (1, True, 3)],
)
def test_logits_are_those_of_the_literal_forward_pass(kv_heads: int, is_tied: bool, padding: int):
    model, (ids, keep) = toy(kv_heads, is_tied), texts(padding)
    with torch.no_grad():
        ours = model(ids, keep).logits
    assert 0.5 < ours[keep].std() < 2
    for kind in (torch.float32, torch.float64):
        assert (ours - literal(model, ids, keep, kind))[keep].abs().max() <= 1e-5


@pytest.mark.parametrize(("kv_heads", "is_tied"), [(4, False), (2, True)])
def test_bfloat16_logits_are_near_the_literal_ones(kv_heads: int, is_tied: bool):
    model, (ids, keep) = toy(kv_heads, is_tied), texts()
    exact = literal(model, ids, keep)[keep]
    with torch.no_grad():
        ours = model.bfloat16()(ids, keep).logits[keep]
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).norm() < 2e-2 * exact.norm()


@pytest.mark.parametrize(("name", "shape"), [("sdpa", (2, 1, 1, 9)), ("flash_attention_2", (2, 9))])
@pytest.mark.parametrize("is_padded", [True, False])
def test_attention_goes_through_the_named_function(name, shape, is_padded, monkeypatch):
    calls = []

    def recording(
        module, q, k, v, mask, **options
    ):  # what transformers calls an attention function with
        calls.append((module, q.shape, k.shape, v.shape, mask, options))
        return v.repeat_interleave(2, 1).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, name, recording)
    model, (ids, keep) = toy(kv_heads=2), texts()
    model.config._attn_implementation = name
    model(ids, keep if is_padded else None)
    assert len(calls) == 2
    module, q, k, v, mask, options = calls[0]
    assert isinstance(module, LladaBlock) and module.num_key_value_groups == 2
    assert not module.is_causal
    assert (q, k, v) == ((2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    assert options == {"is_causal": False}
    assert mask is None if not is_padded else (mask.shape == shape and mask.dtype == torch.bool)


@pytest.mark.parametrize("padding", [None, 0, 3])
def test_sdpa_is_torchs_own_to_the_last_bit(padding: int | None, monkeypatch: pytest.MonkeyPatch):
    """The bytes of the embedded base hang on it."""
    ids, keep = texts(padding or 0)

    def computed() -> list[Tensor]:
        model = toy()
        logits = model(ids, None if padding is None else keep).logits
        logits.square().mean().backward()
        return [logits, *(p.grad for p in model.parameters())]

    def plain(module, q, k, v, mask, is_causal):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2), None

    ours = computed()
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", plain)
    assert all(torch.equal(a, b) for a, b in zip(ours, computed(), strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradient_checkpointing_recomputes_blocks_and_changes_no_gradient(
    dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save_toy(tmp_path)
    ids, keep = texts()
    runs, original = [], LladaBlock.attend
    monkeypatch.setattr(LladaBlock, "attend", lambda *args: runs.append(1) or original(*args))

    def gradients(is_checkpointing: bool) -> dict[str, Tensor]:
        policy = load_policy(
            ModelConfig(path=str(tmp_path)), LORA.model_copy(update={"dropout": dropout}), 0
        )
        if is_checkpointing:
            policy.use_gradient_checkpointing()
        policy.core.train(dropout > 0)
        for p in policy.trainable().values():
            torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(p.numel()))
        torch.manual_seed(1)
        policy.head(policy.hidden(ids, keep)).square().mean().backward()
        return {name: p.grad for name, p in policy.trainable().items()}

    plain, counted = gradients(False), len(runs)
    checkpointed = gradients(True)
    assert (counted, len(runs) - counted) == (2, 4)
    assert len(plain) == 8
    assert all(g.any() and torch.equal(g, checkpointed[name]) for name, g in plain.items())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # newer transformers have another name for it
def test_gradient_checkpointing_can_be_switched_on_as_with_any_transformers_model():
    model, (ids, keep) = toy(), texts()
    model(ids, keep).logits.square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.train().gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    model(ids, keep).logits.square().mean().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain, strict=True))


def published_names() -> set[str]:
    block = ["attn_norm", "ff_norm", "q_proj", "k_proj", "v_proj", "attn_out"]
    block += ["ff_proj", "up_proj", "ff_out"]
    names = {f"model.transformer.{name}.weight" for name in ("wte", "ln_f", "ff_out")}
    return names | {
        f"model.transformer.blocks.{i}.{name}.weight" for i in range(32) for name in block
    }


def test_at_8b_it_has_the_published_tensors_and_parameters():
    with torch.device("meta"):
        model = LladaForMaskedLM(LladaConfig())
    assert sum(p.numel() for p in model.parameters()) == 8_015_581_184
    assert set(model.state_dict()) == published_names() and len(published_names()) == 291


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sharded_checkpoint_loads_to_equal_bytes_and_logits(dtype: torch.dtype, tmp_path: Path):
    model, (ids, keep) = save_toy(tmp_path, dtype), texts()
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) >= 3
    back = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert back.dtype == dtype and set(back.state_dict()) == set(model.state_dict())
    assert all(torch.equal(p, model.state_dict()[name]) for name, p in back.state_dict().items())
    with torch.no_grad():
        assert torch.equal(back(ids, keep).logits, model(ids, keep).logits)


def test_tied_embeddings_are_saved_once(tmp_path: Path):
    model = toy(is_tied=True)
    model.save_pretrained(tmp_path)
    back = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert "model.transformer.ff_out.weight" not in back.state_dict()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True)
    )
