"""The embedded model: about a million parameters and a character tokenizer."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from dopsd.models.config import EmbeddedShape
    from dopsd.models.denoiser import DenoiserConfig

EOS, MASK, BOS = "<|endoftext|>", "<|mdm_mask|>", "<|startoftext|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim"
    " }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of the embedded model.

    Every character is a token; tags, roles, mask and end of text are single tokens. As in LLaDA,
    padding is end of text.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [EOS, MASK, BOS, *ROLES, *TAGS, *CHARACTERS]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        mask_token=MASK,
        unk_token="?",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(ROLES)})
    tokenizer.add_tokens(list(TAGS))
    tokenizer.chat_template = TEMPLATE
    tokenizer.padding_side = "left"
    return tokenizer


def build_config(shape: EmbeddedShape, tokenizer: PreTrainedTokenizerFast) -> DenoiserConfig:
    """Return the config of the embedded model: LLaDA-8B's architecture, or SDAR's, at small width.

    Args:
        shape: widths and depth, and the blocks of SDAR.
        tokenizer: the tokenizer, whose vocabulary and special tokens count.
    """
    ids = {
        "mask_token_id": tokenizer.mask_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if shape.block_size:
        from dopsd.models.sdar.architecture import SdarConfig

        return SdarConfig(
            hidden_size=shape.d_model,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_heads,
            head_dim=shape.d_model // shape.n_heads,
            num_hidden_layers=shape.n_layers,
            intermediate_size=shape.mlp_hidden_size,
            vocab_size=len(tokenizer),
            tie_word_embeddings=False,
            max_position_embeddings=256,
            rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
            block_size=shape.block_size,
            block_alignment="completion",  # short prompts would differ by where they end
            **ids,
        )
    from dopsd.models.llada.configuration import LladaConfig

    return LladaConfig(
        d_model=shape.d_model,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_heads,
        n_layers=shape.n_layers,
        mlp_hidden_size=shape.mlp_hidden_size,
        vocab_size=len(tokenizer),
        embedding_size=len(tokenizer),
        weight_tying=False,
        max_sequence_length=256,
        rope_theta=shape.rope_theta,
        **ids,
    )
