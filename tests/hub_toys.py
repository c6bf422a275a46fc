"""Toys of the architectures made of transformers' decoders, in the layout of the hub.

Config fields are those of the published files, at toy width.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from dopsd.models.registry import read_config
from dopsd.models.text import build_tokenizer

ABSENT = "absent"  # a field that files do not name
COMMON = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "rope_scaling": None,
    "eos_token_id": 0,
    "mask_token_id": 1,
    "vocab_size": 112,
}
CONFIGS = json.loads((Path(__file__).parent / "unit/models/published_configs.json").read_text())
LEFT_OUT = {"dtype", "torch_dtype", "bos_token_id", "pad_token_id"}  # of float32 and few tokens


def published(name: str, **sizes: object) -> dict[str, object]:
    """A published config.json at toy width."""
    fields = {field: value for field, value in CONFIGS[name].items() if field not in LEFT_OUT}
    return fields | COMMON | sizes


HUB = {
    "a2d-qwen3": {
        "architectures": ["A2DQwen3LMHeadModel"],
        "auto_map": {"AutoModel": "modeling_qwen3.A2DQwen3LMHeadModel"},
        "attention_bias": False,
        "head_dim": 16,  # not hidden_size / num_attention_heads
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
    "illada": {
        "architectures": ["ILLaDAForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "layer_norm_eps": None,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
    },
}
HUB["a2d-llama"] = {
    "architectures": ["A2dLlamaForMaskedLM"],
    "attention_bias": False,
    "is_llama_config": True,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rope_interleaved": False,
    "tie_word_embeddings": True,
    "output_shift": 1,
}
HUB["a2d-qwen2"] = {
    "architectures": ["A2DQwen2LMHeadModel"],
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
}
HUB["Dream"] = published("apple/DiffuCoder-7B-Instruct", max_window_layers=2)
HUB["sdar"] = published("JetLM/SDAR-4B-Chat", block_size=4, head_dim=16, max_window_layers=2)
HUB["llada_moe"] = published(
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
    dense_intermediate_size=24,
    expert_intermediate_size=16,
    intermediate_size=ABSENT,
    moe_layer_freq=[1, 1],
    num_experts=8,
    num_experts_per_tok=2,
)
NAMES = list(HUB)
SHIFTED = ["Dream", "a2d-llama"]  # position i - 1 predicts token i
LLADA2 = published(
    "inclusionAI/LLaDA2.1-mini",
    head_dim=8,
    moe_intermediate_size=16,
    n_group=4,
    num_experts=8,
    num_experts_per_tok=2,
    num_hidden_layers=3,
    rotary_dim=4,
    topk_group=2,
)
for own in ("mask_token_id", "eos_token_id"):  # the family's are the defaults
    del LLADA2[own]


def save_hub(folder: Path, name: str, **changes: object) -> dict[str, Tensor]:
    """Write a toy in the layout of the hub, in shards; return its tensors.

    `changes` are fields of config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids = {"mask_token_id": 1, "eos_token_id": 0}
    raw = LLADA2 | ids if name == "llada2_moe" else COMMON | {"model_type": name} | HUB[name]
    raw |= changes
    raw = {field: value for field, value in raw.items() if value != ABSENT}
    (folder / "config.json").write_text(json.dumps(raw))
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(read_config(folder))
    with torch.no_grad():
        for tensor_name, p in model.named_parameters():
            if p.ndim == 1:
                p.normal_(mean=float(tensor_name.endswith("norm.weight")), std=0.2)
            else:
                p.normal_(std=p.shape[1] ** -0.5)
    model.save_pretrained(folder, max_shard_size="16KB")
    (folder / "config.json").write_text(json.dumps(raw))
    build_tokenizer().save_pretrained(folder)
    return {key: value.detach() for key, value in model.state_dict().items()}
