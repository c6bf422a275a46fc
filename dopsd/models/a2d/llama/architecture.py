"""A Llama decoder, such as SmolLM2 (arXiv 2502.02737), with another mask; model_type "a2d-llama".

Rotary angles are plain, or scaled as in Llama 3.1 and later.

Importing this module registers the model_type with AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import LlamaConfig, LlamaModel

from dopsd.models.a2d.config import A2dConfig
from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask


class A2dLlamaConfig(A2dConfig, LlamaConfig):
    """Shape of an adapted Llama."""

    model_type = "a2d-llama"
    mask_token = "<|mask|>"
    required: ClassVar[tuple[str, ...]] = ("eos_token_id", "mask_token_id")
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "is_llama_config": (None, True),  # of SmolLM2's file; changes nothing
    }
    rope_types: ClassVar[tuple[str, ...]] = ("llama3",)
    mask_token_id: int = 0
    block_size: int | None = None
    block_alignment: str = "completion"  # type: ignore[assignment]


class A2dLlamaForMaskedLM(DecoderForMaskedLM):
    """The adapted Llama with its head."""

    config_class = A2dLlamaConfig
    trunk_class = without_causal_mask(LlamaModel)
