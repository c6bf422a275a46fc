"""Dream-7B (arXiv 2508.15487) and DiffuCoder-7B (arXiv 2506.20639): Qwen2.5 with another mask.

The state at position i predicts token i + 1, as in the autoregressive model that they began as.
Importing this module registers model_type "Dream" with AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import Qwen2Config, Qwen2Model

from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask
from dopsd.models.common.decoder_config import DecoderConfig


class DreamConfig(DecoderConfig, Qwen2Config):
    """Shape of a Dream model.

    DreamReasoner has the same model_type, but blocks and no shift; its `block_size` is refused.
    """

    model_type = "Dream"
    output_shift = 1
    has_fused_kernels = True
    tokenizer_name = "Qwen2Tokenizer"
    end_of_turn = "<|im_end|>"
    required: ClassVar[tuple[str, ...]] = ("mask_token_id", "eos_token_id")
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "use_mrope": (False, None),
        "block_size": (None,),
    }
    mask_token_id: int = 151666


class DreamForMaskedLM(DecoderForMaskedLM):
    """Dream with its head."""

    config_class = DreamConfig
    trunk_class = without_causal_mask(Qwen2Model)
