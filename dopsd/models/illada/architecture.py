"""iLLaDA-8B (arXiv 2606.25331): a Llama with grouped-query attention and without causal mask.

Tensor names are Llama's; the output is not shifted. Importing this module registers model_type
"illada" with AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import LlamaConfig, LlamaModel

from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask
from dopsd.models.common.decoder_config import DecoderConfig


class IlladaConfig(DecoderConfig, LlamaConfig):
    """Shape of an iLLaDA model.

    The published config.json names no mask; it is token 5.
    """

    model_type = "illada"
    end_of_turn = "<|eot_id|>"  # LLaDA's
    has_fused_kernels = True
    required: ClassVar[tuple[str, ...]] = ("eos_token_id",)
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "resid_pdrop": (0.0,),
        "layer_norm_eps": (None,),  # a number: LayerNorm in place of RMSNorm
    }
    mask_token_id: int = 5


class IlladaForMaskedLM(DecoderForMaskedLM):
    """iLLaDA with its head."""

    config_class = IlladaConfig
    trunk_class = without_causal_mask(LlamaModel)
