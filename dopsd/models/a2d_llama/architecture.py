"""SmolLM2 (arXiv 2502.02737), a Llama decoder, with another mask; nobody has published one.

The state at position i predicts token i + 1, as in the autoregressive model that it began as.
Importing this module registers model_type "a2d-llama" with AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import AutoConfig, AutoModelForMaskedLM, LlamaConfig, LlamaModel

from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask
from dopsd.models.common.decoder_config import DecoderConfig


class A2dLlamaConfig(DecoderConfig, LlamaConfig):
    """Shape of an adapted Llama; the mask is a token that SmolLM2's tokenizer keeps in reserve."""

    model_type = "a2d-llama"
    output_shift = 1
    mask_token = "<empty_output>"
    end_of_turn = "<|im_end|>"
    required: ClassVar[tuple[str, ...]] = ("eos_token_id",)
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "is_llama_config": (None, True),  # of the published file; changes nothing
    }
    mask_token_id: int = 16


class A2dLlamaForMaskedLM(DecoderForMaskedLM):
    """The adapted Llama with its head."""

    config_class = A2dLlamaConfig
    trunk_class = without_causal_mask(LlamaModel)
    _no_split_modules = ["LlamaDecoderLayer"]  # noqa: RUF012


AutoConfig.register("a2d-llama", A2dLlamaConfig)
AutoModelForMaskedLM.register(A2dLlamaConfig, A2dLlamaForMaskedLM)
