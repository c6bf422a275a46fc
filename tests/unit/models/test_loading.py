"""Checkpoint folders: what would be silently wrong is refused."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toys import rewrite, save_toy, toy
from transformers import AutoConfig, AutoModelForMaskedLM

from dopsd.core.errors import DopsdError
from dopsd.models.backends import attention_of, check_kernels
from dopsd.models.config import ModelConfig
from dopsd.models.llada.configuration import READ, LladaConfig
from dopsd.models.llm_policy import load_policy

PUBLISHED = json.loads(
    Path(__file__).with_name("llada_8b_instruct.json").read_text()
)  # config.json, as it is on the hub


def test_the_published_config_loads_as_it_is(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, LladaConfig)
    assert {name: vars(config)[name] for name in READ} == {name: PUBLISHED[name] for name in READ}
    ids = (config.mask_token_id, config.eos_token_id, config.pad_token_id)
    assert ids == (126336, 126081, 126081)


def test_a_folder_with_the_hubs_code_loads_without_running_it(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    model = save_toy(tmp_path)
    for name in ("configuration_llada.py", "modeling_llada.py"):
        (tmp_path / name).write_text("raise SystemExit('code of the folder was run')\n")
    small = {name: value for name, value in model.config.to_dict().items() if name in PUBLISHED}
    extra = {"auto_map": PUBLISHED["auto_map"], "architectures": PUBLISHED["architectures"]}
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | small | extra))
    back = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(back.model.transformer["wte"].weight, model.model.transformer["wte"].weight)
    for dtype in ("float32", "bfloat16"):
        policy = load_policy(ModelConfig(path=str(tmp_path), dtype=dtype), None, 0)
        assert policy.core.config.d_model == 32 and policy.core.dtype == getattr(torch, dtype)


def test_the_config_of_the_embedded_model_states_what_it_always_did(tmp_path: Path):
    toy().save_pretrained(tmp_path)
    names = """activation_type architectures attention_layer_norm block_type d_model dtype
        embedding_size eos_token_id hidden_size include_bias layer_norm_type mask_token_id
        max_sequence_length mlp_hidden_size model_type n_heads n_kv_heads n_layers
        num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope
        rope_full_precision rope_theta tie_word_embeddings transformers_version vocab_size
        weight_tying"""
    assert sorted(json.loads((tmp_path / "config.json").read_text())) == names.split()


NORM = "model.transformer.ln_f.weight"


def shard_with(folder: Path, name: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][name]


def change_tensor(folder: Path, change: dict[str, Tensor | None]) -> None:
    """Replace, add or (None) remove tensors beside the last norm, and in the index."""
    path, index = shard_with(folder, NORM), folder / "model.safetensors.index.json"
    tensors = {name: t for name, t in (load_file(path) | change).items() if t is not None}
    save_file(tensors, path, metadata={"format": "pt"})
    before = json.loads(index.read_text())["weight_map"]
    listed = {name: file for name, file in before.items() if file != path.name}
    rewrite(index, weight_map=listed | dict.fromkeys(tensors, path.name))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({NORM: None}, rf"1 tensor missing: {NORM}; download it again"),
        (
            {f"stranger{i}": torch.ones(1) for i in range(5)},
            r"5 tensors unknown .*: stranger0, stranger1, stranger2, \.\.\.; take config",
        ),
        (
            {"stranger": torch.ones(1)},
            r"model-.*safetensors: 1 tensor unknown to config.json: stranger; take config.json",
        ),
        (
            {NORM: torch.ones(31)},
            rf"1 tensor of another shape \(first: \[31\], config.json gives \[32\]\): {NORM}",
        ),
        ({NORM: torch.full([32], torch.nan)}, rf"1 tensor not finite .*: {NORM}; download"),
        ({NORM: torch.tensor([torch.inf] + [0.0] * 31)}, rf"1 tensor not finite .*: {NORM}"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, change: dict, said: str):
    save_toy(tmp_path)
    change_tensor(tmp_path, change)
    with pytest.raises(DopsdError, match=said) as raised:
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    assert "\n" not in str(raised.value)


def test_a_damaged_or_absent_shard_is_named(tmp_path: Path):
    save_toy(tmp_path)
    path = shard_with(tmp_path, NORM)
    whole = path.read_bytes()
    for content in (whole[:-8], whole[:4], b"\xff" * 8 + whole[8:]):
        path.write_bytes(content)
        said = rf"{path.name}: not a whole safetensors file .*; restore the file, or download"
        with pytest.raises(DopsdError, match=said):
            load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    path.unlink()
    said = rf"{path.name}: \d tensors? missing with this file, which .*index.json lists: "
    with pytest.raises(DopsdError, match=said):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)


def test_an_index_that_does_not_tell_the_truth_is_refused(tmp_path: Path):
    save_toy(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())["weight_map"]
    other = next(file for file in listed.values() if file != listed[NORM])
    rewrite(index, weight_map=listed | {NORM: other})
    with pytest.raises(DopsdError, match=rf"1 tensor (missing, though|not listed in) .*: {NORM}"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    index.write_text("{")
    with pytest.raises(DopsdError, match="not a whole index file"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)


def test_pickled_weights_are_never_read(tmp_path: Path):
    model = save_toy(tmp_path)
    for path in tmp_path.glob("model*"):
        path.unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(DopsdError, match=r"only pytorch_model\.bin, and pickle files are not loa"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(DopsdError, match=r"no weights; expected model\.safetensors"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    (tmp_path / "config.json").unlink()
    with pytest.raises(DopsdError, match=r"no config\.json"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path):
    save_toy(tmp_path)
    for path in tmp_path.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(DopsdError, match=r"cannot read a tokenizer .*; copy tokenizer\.json"):
        load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    for text in ("{", '{"model_type": "stranger"}'):
        (tmp_path / "config.json").write_text(text)
        said = r"config\.json: (not a model's config|model_type .stranger. is not supported)"
        with pytest.raises(DopsdError, match=said) as raised:
            load_policy(ModelConfig(path=str(tmp_path)), None, 0)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "library"),
    [
        ({"quantization": "nf4"}, "bitsandbytes"),
        ({"attention": "flash_attention_2"}, "flash_attn"),
        ({"kernels": "liger"}, "liger_kernel"),
    ],
)
def test_kernels_that_this_machine_lacks_are_refused(settings: dict, library: str, monkeypatch):
    model = ModelConfig(dtype="bfloat16", **settings)
    monkeypatch.setattr("dopsd.models.backends.find_spec", lambda name: None)
    with pytest.raises(DopsdError, match=rf"needs {library}, which is not installed: pip install"):
        check_kernels(model, torch.device("cuda"))
    monkeypatch.setattr("dopsd.models.backends.find_spec", lambda name: object())
    with pytest.raises(DopsdError, match="needs an NVIDIA GPU"):
        check_kernels(model, torch.device("cpu"))
    check_kernels(model, torch.device("cuda"))


@pytest.mark.skipif(
    not (torch.cuda.is_available() and find_spec("flash_attn")), reason="needs a GPU and flash_attn"
)
def test_flash_attention_agrees_with_sdpa(tmp_path: Path):
    save_toy(tmp_path)
    keep = torch.tensor([[False, False, True, True, True], [True] * 5])
    found = []
    for attention in ("sdpa", "flash_attention_2"):
        policy = load_policy(
            ModelConfig(path=str(tmp_path), dtype="bfloat16", attention=attention), None, 0
        )
        ids = torch.arange(5, 15, device=policy.device).view(2, 5)
        found.append(policy.head(policy.hidden(ids, keep.to(policy.device)))[keep].float())
    assert (found[0] - found[1]).norm() < 2e-2 * found[0].norm()


def test_compiling_is_refused_where_it_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = ModelConfig(path=str(tmp_path), compile=True)
    monkeypatch.setenv("PATH", "")
    for device, compiler in (("cpu", "g++"), ("cuda", "gcc")):
        with pytest.raises(
            DopsdError, match=rf"needs a compiler, and {re.escape(compiler)} was not found"
        ):
            check_kernels(model, torch.device(device))


def test_attention_left_to_the_machine_is_sdpa_without_a_gpu_or_in_float32():
    auto = ModelConfig(attention="auto", dtype="bfloat16")
    assert attention_of(auto, torch.device("cpu")) == "sdpa"
    assert attention_of(ModelConfig(attention="auto"), torch.device("cuda", 0)) == "sdpa"
