"""What published checkpoints hold; LLaDA-MoE's config is put together from its class."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hub_toys import save_hub
from tokenizers.pre_tokenizers import ByteLevel
from toys import rewrite

from dopsd.core.errors import DopsdError
from dopsd.models.checkpoint_files import expected_shapes
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.models.loading import build_model
from dopsd.models.registry import ARCHITECTURES, published, read_config
from dopsd.models.tokenizer import load_tokenizer

CONFIGS = json.loads(Path(__file__).with_name("published_configs.json").read_text())
BILLIONS = {  # of parameters, as model cards, pages of the hub or sizes of bfloat16 files say
    "Dream-org/Dream-v0-Instruct-7B": 7.62,
    "GSAI-ML/iLLaDA-8B-Base": 7.62,
    "GSAI-ML/LLaDA-8B-Instruct": 8.02,
    "JetLM/SDAR-1.7B-Chat": 4.06 / 2,
    "JetLM/SDAR-4B-Chat": (4.97 + 3.86) / 2,
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct": 7.36,
    "inclusionAI/LLaDA2.0-mini": 16,
}


COUNTS: dict[str, int] = {}  # building a model of 256 experts a layer takes seconds


def count(config) -> int:
    """Parameters of a config; of several with the same sizes one is built."""
    sizes = {k: v for k, v in config.to_dict().items() if type(v) is int and k[-3:] != "_id"}
    sizes = {k: v for k, v in sizes.items() if not k.startswith(("max_", "sliding_"))}
    key = str((config.model_type, config.tie_word_embeddings, sorted(sizes.items())))
    if key not in COUNTS:
        COUNTS[key] = sum(math.prod(shape) for shape in expected_shapes(config).values())
    return COUNTS[key]


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("apple/DiffuCoder-7B-Instruct", "Dream", 7_615_616_512),
        ("JetLM/SDAR-4B-Chat", "sdar", 4_411_424_256),
        pytest.param(
            *("inclusionAI/LLaDA2.1-mini", "llada2_moe", 16_255_643_392), marks=pytest.mark.full
        ),
        pytest.param(
            *("inclusionAI/dFactory, llada2_mini", "llada2_moe", 16_255_643_392),
            marks=pytest.mark.full,
        ),
        ("inclusionAI/LLaDA-MoE-7B-A1B-Instruct", "llada_moe", 7_356_880_896),
    ],
)
def test_a_published_config_is_read(name: str, kind: str, parameters: int, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = read_config(tmp_path)
    assert config.model_type == kind and count(config) == parameters


@pytest.mark.parametrize("name", BILLIONS)
@pytest.mark.full
def test_at_true_size_it_has_the_published_number_of_parameters(name: str):
    row = next(row for row in published() if row.name == name)
    tolerance = 0.5 if isinstance(BILLIONS[name], int) else 0.006
    assert abs(count(row.config()) / 1e9 - BILLIONS[name]) <= tolerance
    assert row.parameters == pytest.approx(count(row.config()), rel=0.005)


def test_tiny_a2d_has_the_parameters_of_qwen3_and_its_files_the_head_once_more():
    config = next(row for row in published() if "Qwen3-0.6B-diffusion-mdlm" in row.name).config()
    assert count(config) == 596_049_920
    assert round((596_049_920 + 151_936 * 1024) / 1e9, 1) == 0.8  # as the hub counts


def test_an_adapted_smollm2_has_its_fields_and_its_size(tmp_path: Path):
    raw = CONFIGS["HuggingFaceTB/SmolLM2-135M"] | {"model_type": "a2d-llama", "mask_token_id": 16}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    row = next(row for row in published() if row.architecture == "a2d_llama")
    assert count(read_config(tmp_path)) == count(row.config()) == 134_515_008


DREAM = [257, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]


def dream_tokenizer(folder: Path) -> None:
    """Write a tokenizer as Dream's repository has it: vocabulary, merges, and code of its own."""
    vocabulary = {c: n for n, c in enumerate([*sorted(ByteLevel.alphabet()), "he"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n")
    first, *special = DREAM
    flags = dict.fromkeys(["lstrip", "normalized", "rstrip", "single_word"], False)
    added = {first + n: {"content": t, "special": True} | flags for n, t in enumerate(special)}
    settings = {
        "added_tokens_decoder": added,
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "bos_token": "<|beginoftext|>",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "DreamTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    trap = "from pathlib import Path\n\nPath('was_run').touch()\n"
    (folder / "tokenization_dream.py").write_text(trap)


def test_dreams_tokenizer_is_read_without_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_hub(tmp_path, "Dream", vocab_size=270, mask_token_id=261, eos_token_id=257)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).unlink(missing_ok=True)
    dream_tokenizer(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    ids = policy.tokenizer("he is<|im_end|>", add_special_tokens=False)["input_ids"]
    assert ids[0] == 256 and ids[-1] == 259 and policy.tokenizer.decode(ids) == "he is<|im_end|>"
    assert not Path("was_run").exists()
    policy.tokenizer.save_pretrained("out")
    assert "auto_map" not in json.loads(Path("out/tokenizer_config.json").read_text())


def test_a_whole_tokenizer_that_brings_code_is_read_without_it(tmp_path: Path):
    save_hub(tmp_path, "llada2_moe")
    before = load_tokenizer(tmp_path, read_config(tmp_path)).get_vocab()
    code = {"AutoTokenizer": [None, "tokenization_stranger.Stranger"]}
    rewrite(tmp_path / "tokenizer_config.json", auto_map=code, tokenizer_class="Stranger")
    assert load_tokenizer(tmp_path, read_config(tmp_path)).get_vocab() == before
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DopsdError, match="needs code of its own, which is not run"):
        load_tokenizer(tmp_path, read_config(tmp_path))


def test_sdars_answers_end_with_the_end_of_turn(tmp_path: Path):
    save_hub(tmp_path, "sdar")
    tokenizer = load_tokenizer(tmp_path, read_config(tmp_path))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.save_pretrained(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    assert policy.eos_id == tokenizer.convert_tokens_to_ids("<|im_end|>") != 0
    ids = policy.tokenizer("12<|im_end|>34", add_special_tokens=False, return_tensors="pt")
    assert policy.text.decode(ids["input_ids"][0]) == "12"


@pytest.mark.parametrize(
    "row",
    ["me/mine: {colour: red}", "computes: {colour: 1}", "computes: {attention_patterns: red}"],
)
def test_a_broken_plug_in_breaks_no_other_base(tmp_path, monkeypatch, row: str):
    save_hub(tmp_path / "base", "Dream")
    (tmp_path / "raises").mkdir()
    (tmp_path / "raises/__init__.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    packages = ARCHITECTURES.packages | {"mine": "raises.architectures", "gone": "not_installed"}
    monkeypatch.setattr(ARCHITECTURES, "packages", packages)
    assert read_config(tmp_path / "base").model_type == "Dream"
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/__init__.py").touch()
    (tmp_path / "rows/checkpoints.yaml").write_text(row)
    monkeypatch.setattr(ARCHITECTURES, "packages", ARCHITECTURES.packages | {"rows": "rows"})
    with pytest.raises(DopsdError, match=r"rows/checkpoints.yaml: expected a table .*(colour|red)"):
        published()


def test_widths_and_ids_that_the_file_does_not_name_are_those_of_the_family(tmp_path: Path):
    w = save_hub(tmp_path, "llada_moe")
    absent = dict.fromkeys(["intermediate_size", "moe_layer_freq", "mask_token_id", "eos_token_id"])
    rewrite(tmp_path / "config.json", **absent)
    config = read_config(tmp_path)
    found = {name: p.shape for name, p in build_model(config).state_dict().items()}
    assert found == {name: p.shape for name, p in w.items()}
    assert config.head_dim == 8  # 32 / 4
    assert (config.mask_token_id, config.eos_token_id) == (156895, 156892)


def test_files_of_llada_moe_have_the_published_names(tmp_path: Path):
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
