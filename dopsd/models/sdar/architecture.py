"""SDAR (arXiv 2510.06303): Qwen3 with block-causal attention, in blocks of 4 to 64 tokens.

Tensor names and config are those of Qwen3; the output is not shifted. Importing this module
registers model_type "sdar" with AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import Qwen3Config, Qwen3Model

from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask
from dopsd.models.common.decoder_config import DecoderConfig


class SdarConfig(DecoderConfig, Qwen3Config):
    """Shape of an SDAR model.

    Published files may name neither mask nor block, and name <|endoftext|> as the end; answers end
    with the tokenizer's end of turn.
    """

    model_type = "sdar"
    mask_token = "<|MASK|>"
    has_fused_kernels = True
    end_of_turn = "<|im_end|>"
    text_ends_with_turn = True
    attention_patterns = ("block_causal",)
    required: ClassVar[tuple[str, ...]] = ("head_dim", "eos_token_id")
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {"attention_bias": (False,)}
    mask_token_id: int = 151669
    block_size: int | None = None
    # as in the published sampler and training
    block_alignment: str = "sequence"  # type: ignore[assignment]


class SdarForMaskedLM(DecoderForMaskedLM):
    """SDAR with its head."""

    config_class = SdarConfig
    trunk_class = without_causal_mask(Qwen3Model)
