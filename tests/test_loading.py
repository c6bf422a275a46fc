"""Checkpoint folders: the hub's layout and config as they are, and every way of being damaged refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_models import IDS_IN, KEEP, toy
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

from dopsd.config import Lora, Model
from dopsd.errors import DopsdError
from dopsd.models import load_policy
from dopsd.models.llada import LladaConfig
from dopsd.models.loading import banned_ids, load_model, load_tokenizer

PUBLISHED = {  # config.json of LLaDA-8B-Instruct on the hub
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "auto_map": {
        "AutoConfig": "configuration_llada.LLaDAConfig",
        "AutoModel": "modeling_llada.LLaDAModelLM",
        "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
    },
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_dropout": 0.0,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "transformers_version": "4.46.3",
    "use_cache": False,
    "vocab_size": 126464,
    "weight_tying": False,
}


@pytest.fixture
def base(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared / "base", tmp_path / "base")


def rewrite(base: Path, change) -> None:
    """The weights with `change` made to their dictionary."""
    tensors = load_file(base / "model.safetensors")
    change(tensors)
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})


def refused(base: Path, said: str) -> None:
    with pytest.raises(DopsdError, match=said) as caught:
        load_policy(Model(path=str(base)), None, 0)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kv_heads", "is_tied"), [(4, False), (2, True)])
def test_three_shards_come_back_byte_for_byte_under_the_published_names(tmp_path: Path, dtype, kv_heads, is_tied):
    model = toy(kv_heads, is_tied).to(dtype)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(tmp_path, max_shard_size=size // 3 + size // 10)
    assert len(list(tmp_path.glob("model-*-of-00003.safetensors"))) == 3
    stored = {k: v for path in tmp_path.glob("*.safetensors") for k, v in load_file(path).items()}
    assert stored.keys() == model.state_dict().keys()
    assert {"model.transformer.wte.weight", "model.transformer.blocks.1.ff_out.weight"} <= stored.keys()
    assert ("model.transformer.ff_out.weight" in stored) is not is_tied
    assert all(torch.equal(stored[name], p) for name, p in model.state_dict().items())
    back = AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=dtype)
    assert torch.equal(back(IDS_IN, KEEP).logits, model(IDS_IN, KEEP).logits)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llada"


def test_the_published_config_is_read_as_it_is_and_its_code_is_never_run(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert isinstance(AutoConfig.from_pretrained(tmp_path), LladaConfig)
    shape = toy().config.to_dict()
    small = {name: shape[name] for name in PUBLISHED if name in shape and not isinstance(shape[name], bool | str | None)}
    toy().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | small))
    for name in ("configuration_llada.py", "modeling_llada.py"):
        (tmp_path / name).write_text("raise SystemExit('remote code ran')")
    found = load_model(Model(path=str(tmp_path)))
    assert torch.equal(found(IDS_IN, KEEP).logits, toy()(IDS_IN, KEEP).logits)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_theta": None}, "lacks rope_theta"),
        ({"include_bias": True}, "include_bias: True"),
        ({"scale_logits": True}, "scale_logits: True"),
        ({"residual_dropout": 0.1}, "residual_dropout: 0.1"),
        ({"layer_norm_type": "low_precision"}, "layer_norm_type: 'low_precision'"),
    ],
)
def test_a_config_that_would_be_silently_wrong_is_refused(base: Path, change: dict, said: str):
    raw = json.loads((base / "config.json").read_text())
    raw = {k: v for k, v in (raw | change).items() if v is not None}
    (base / "config.json").write_text(json.dumps(raw))
    refused(base, said)


def test_missing_and_extra_tensors_are_named(base: Path):
    rewrite(base, lambda t: t.update(stranger=t.pop("model.transformer.ln_f.weight")))
    refused(base, r"missing tensors \(1\): model.transformer.ln_f.weight; .*not have \(1\): stranger; download")


def test_a_tensor_of_another_shape_is_named(base: Path):
    name = "model.transformer.blocks.0.q_proj.weight"
    rewrite(base, lambda t: t.update({name: t[name][:-1].contiguous()}))
    refused(base, r"tensors of another shape \(1\): model.transformer.blocks.0.q_proj.weight \[31, 32\] .*\[32, 32\]")


def test_a_weight_that_is_not_a_number_is_named(base: Path):
    name = "model.transformer.blocks.1.up_proj.weight"
    rewrite(base, lambda t: t[name][0].fill_(float("nan")))
    refused(base, rf"tensors with NaN or infinity \(1\): {name}")


def test_a_damaged_a_missing_and_an_unsafe_file_are_named(base: Path, tmp_path: Path):
    whole = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(base, "model.safetensors is damaged")
    (base / "model.safetensors").write_bytes(b"\xff" * 100)
    refused(base, "model.safetensors is damaged")
    (base / "model.safetensors").unlink()
    (base / "pytest_model.bin").write_bytes(b"x")
    refused(base, r"no model.safetensors .*can run code")
    toy().save_pretrained(tmp_path / "parts", max_shard_size=20_000)
    shard = sorted((tmp_path / "parts").glob("model-*"))[1]
    shard.unlink()
    refused(tmp_path / "parts", rf"missing files \(1\): {shard.name}")
    (tmp_path / "parts/model.safetensors.index.json").write_text("{")
    refused(tmp_path / "parts", "index.json is damaged")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"quantization": "nf4"}, r"model.quantization: nf4 needs (bitsandbytes, which is not installed|an NVIDIA GPU)"),
        ({"attention": "flash_attention_2"}, r"model.attention: flash_attention_2 needs (flash_attn, which|an NVIDIA GPU)"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is refused")
def test_kernels_that_cannot_run_here_are_said_before_weights_load(base: Path, model: dict, said: str):
    with pytest.raises(DopsdError, match=said):
        load_model(Model(path=str(base), dtype="bfloat16", **model))


def llada_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A small tokenizer with LLaDA's special tokens: the mask is only an added one, and there is no template."""
    special = ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    words = {word: i for i, word in enumerate(["user", "assistant", "Hello", "<reasoning>", "[UNK]", "\n\n"])}
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=special[0], eos_token=special[1], pad_token=special[1])
    made.add_special_tokens({"additional_special_tokens": special[2:]})
    made.save_pretrained(folder)
    return made


def test_a_prompt_is_written_as_llada_was_taught(tmp_path: Path):
    llada_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    turns = [{"role": "user", "content": " Hello \n"}]
    for asked in (True, False):
        assert tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asked) == (
            "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )
    assert tokenizer.padding_side == "left"


def test_an_answer_may_end_its_turn_and_the_text_but_not_write_masks_or_reserved_tokens(tmp_path: Path):
    llada_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.get_vocab()
    banned = banned_ids(tokenizer, ids["<|mdm_mask|>"], ids["<|endoftext|>"], len(tokenizer) + 2)
    assert not {ids["<|eot_id|>"], ids["<|endoftext|>"], ids["Hello"]} & set(banned)
    reserved = {len(tokenizer), len(tokenizer) + 1}
    assert {ids["<|mdm_mask|>"], ids["<|startoftext|>"], ids["<|start_header_id|>"]} | reserved <= set(banned)


def test_a_prefill_starts_the_answer(base: Path):
    policy = load_policy(Model(path=str(base)), None, 0)
    turns = [{"role": "user", "content": "12"}]
    plain, filled = policy.encode(turns).tolist(), policy.encode(turns, "<reasoning>").tolist()
    assert filled == [*plain, policy.tokenizer.convert_tokens_to_ids("<reasoning>")]


def test_gradient_checkpointing_trains_the_same_adapter(base: Path):
    lora = Lora(r=2, alpha=2, dropout=0.0)
    found = []
    for is_saving in (False, True):
        policy = load_policy(Model(path=str(base)), lora, 0)
        if is_saving:
            policy.save_memory()
        policy.core.train()
        policy.head(policy.hidden(torch.arange(4, 24).view(2, 10), None)).square().mean().backward()
        found.append([p.grad for p in policy.trainable().values()])
    assert any(grad.abs().max() > 0 for grad in found[0])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
