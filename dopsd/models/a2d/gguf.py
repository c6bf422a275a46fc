"""Read a Llama decoder from a GGUF file: config, weights and tokenizer.

transformers reads such files too, but refuses to save them, and takes another end of text than the
chat's. Written out here are Llama's tensors and SmolLM2's tokenizer; others are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dopsd.core.errors import Code, DopsdError
from dopsd.core.extras import require

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

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
TOKENIZER = ("gpt2", "smollm")  # llama.cpp's names of byte pairs, and of how text is cut before


class GgufFile:
    """A GGUF file; the weights are read one by one."""

    def __init__(self, path: Path) -> None:
        require(str(path), "gguf")
        from gguf import GGUFReader

        self.path = path
        try:
            self.reader: GGUFReader = GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split())[:120]
            raise Code.WEIGHTS.error(
                f"{path}: not a whole GGUF file ({reason}); download it again"
            ) from error
        self._refuse_others()
        self.tensors = {self._name(tensor.name): tensor for tensor in self.reader.tensors}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # fields have many kinds
        """Return a field of the file."""
        field = self.reader.fields.get(name)
        if field is None:
            raise self._fault(f"lacks the field {name}")
        try:
            return field.contents()
        except (ValueError, IndexError, KeyError) as error:
            raise self._fault(f"has the field {name}, which cannot be read") from error

    def _fault(self, what: str) -> DopsdError:
        advice = "convert the model's safetensors instead, from a folder in the hub's layout"
        return Code.UNSUPPORTED_MODEL.error(f"{self.path}: {what}; {advice}")

    def _refuse_others(self) -> None:
        architecture = self["general.architecture"]
        if architecture != "llama":
            raise self._fault(f"its architecture is {architecture}, and only llama is read")
        kind = (self["tokenizer.ggml.model"], self["tokenizer.ggml.pre"])
        if kind != TOKENIZER:
            raise self._fault(f"its tokenizer is {'/'.join(kind)}, and only {TOKENIZER[1]} is read")
        scaling = "llama.rope.scaling.type"
        if scaling in self.reader.fields and self[scaling] != "none":
            raise self._fault(f"its {scaling} is {self[scaling]}, and none is read")

    def _name(self, name: str) -> str:
        """Return transformers' name of a tensor, such as blk.7.attn_q.weight."""
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
        layer, part = found.groups() if found else (None, "")
        known = (INSIDE if layer else OUTSIDE).get(part)
        if known is None:
            raise self._fault(f"has the tensor {name}, which a Llama has not")
        return f"model.layers.{layer}.{known}.weight" if layer else f"{known}.weight"

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in float32, by transformers' name."""
        import numpy as np
        from gguf import dequantize

        found = self.tensors[name]
        shape = tuple(int(size) for size in reversed(found.shape))
        try:
            values = np.array(dequantize(found.data, found.tensor_type), np.float32).reshape(shape)
        except NotImplementedError as error:
            raise self._fault(f"{name} is {found.tensor_type.name}, which is not read") from error
        heads = {"q_proj": "head_count", "k_proj": "head_count_kv"}.get(name.split(".")[-2])
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return in_halves(tensor, self[f"llama.attention.{heads}"]) if heads else tensor

    def config(self) -> dict[str, Any]:
        """Return the fields of config.json."""
        heads, width = self["llama.attention.head_count"], self["llama.embedding_length"]
        return {
            "model_type": "llama",
            "attention_bias": False,
            "bos_token_id": self["tokenizer.ggml.bos_token_id"],
            "eos_token_id": self["tokenizer.ggml.eos_token_id"],
            "pad_token_id": self["tokenizer.ggml.padding_token_id"],
            "head_dim": width // heads,
            "hidden_act": "silu",
            "hidden_size": width,
            "intermediate_size": self["llama.feed_forward_length"],
            "max_position_embeddings": self["llama.context_length"],
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": self["llama.block_count"],
            "num_key_value_heads": self["llama.attention.head_count_kv"],
            "rms_norm_eps": float(f"{self['llama.attention.layer_norm_rms_epsilon']:.6g}"),
            "rope_theta": self["llama.rope.freq_base"],
            "tie_word_embeddings": "lm_head.weight" not in self.tensors,
            "vocab_size": len(self["tokenizer.ggml.tokens"]),
        }

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer: byte pairs, and digits one by one ("smollm" of llama.cpp)."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words: list[str] = self["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in self["tokenizer.ggml.merges"]]
        core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_alone])
        core.decoder = decoders.ByteLevel()
        kinds = self["tokenizer.ggml.token_type"]
        special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
        core.add_special_tokens(
            [AddedToken(word, special=True, normalized=False) for word in special]
        )
        roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        numbers = {role: self[f"tokenizer.ggml.{name}_token_id"] for role, name in roles.items()}
        if not all(type(number) is int and 0 <= number < len(words) for number in numbers.values()):
            raise self._fault(f"has no such tokens: {numbers}")
        tokens = {f"{role}_token": words[number] for role, number in numbers.items()}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core,
            clean_up_tokenization_spaces=False,
            model_max_length=self["llama.context_length"],
            **tokens,
        )
        tokenizer.chat_template = self["tokenizer.chat_template"]
        return tokenizer


def in_halves(tensor: Tensor, heads: int) -> Tensor:
    """Reorder the rows of queries or keys [heads * width, D] as transformers rotates them.

    llama.cpp has the two rows of each rotation beside each other, transformers in two halves.
    """
    rows, columns = tensor.shape
    pairs = tensor.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
