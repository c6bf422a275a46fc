"""Tiny random autoregressive checkpoints, as folders of the hub and as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dopsd.models.text import build_tokenizer

KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,  # the last position sees the same without a causal mask
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def autoregressive(kind: str, vocabulary: int, tied: bool = True, **sizes: int) -> PreTrainedModel:
    config_class, model_class = KINDS[kind]
    torch.manual_seed(0)
    fields = SIZES | {"vocab_size": vocabulary, "tie_word_embeddings": tied, "eos_token_id": 0}
    model = model_class(config_class(**fields | sizes))
    for name, weight in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def save_source(
    folder: Path, kind: str, spare: int = 0, tied: bool = True, **sizes: int
) -> PreTrainedModel:
    """Write a checkpoint with `spare` rows of the embedding without a token; return the model."""
    tokenizer = build_tokenizer()
    tokenizer.mask_token = None  # its text stays a token in reserve
    model = autoregressive(kind, len(tokenizer) + spare, tied, **sizes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def write_gguf(
    path: Path, model: PreTrainedModel, also: Callable[[Any], object] = lambda writer: None
) -> list[str]:
    """Write a Llama and a tokenizer of bytes to a GGUF file; return the tokens."""
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>"]
    kinds = [3] * len(tokens)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, kinds = [*tokens, *letters, "ab"], kinds + [1] * (len(letters) + 1)
    config, writer = model.config, GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    for role, number in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
        getattr(writer, f"add_{role}_token_id")(number)
    writer.add_chat_template(CHATML)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    eight = GGMLQuantizationType.Q8_0
    for name, tensor in model.state_dict().items():
        values = tensor.detach().numpy()
        if name == "lm_head.weight":
            continue
        if name in ("model.embed_tokens.weight", "model.norm.weight"):
            writer.add_tensor(
                "token_embd.weight" if "embed" in name else "output_norm.weight", values
            )
            continue
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        if names[part] in ("attn_q", "attn_k"):  # two rows of a rotation beside each other
            width = config.head_dim
            order = [h + i + j * width // 2 for h in range(0, len(values), width)
                     for i in range(width // 2) for j in range(2)]  # fmt: skip
            values = values[order]
        target = f"blk.{layer}.{names[part]}.weight"
        if "norm" in part or values.shape[-1] % 32:
            writer.add_tensor(target, values)
        else:
            writer.add_tensor(
                target, quantize(np.ascontiguousarray(values), eight), raw_dtype=eight
            )
    also(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tokens
