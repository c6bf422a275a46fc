"""A Qwen2 or Qwen2.5 decoder with another mask; model_type "a2d-qwen2".

Tensor names and config are those of Qwen2. Importing this module registers the model_type with
AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import Qwen2Config, Qwen2Model

from dopsd.models.a2d.config import A2dConfig
from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask


class A2dQwen2Config(A2dConfig, Qwen2Config):
    """Shape of an adapted Qwen2; the family's tokenizers add the mask as token 151665."""

    model_type = "a2d-qwen2"
    mask_token = "<|mask|>"
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {"use_mrope": (False, None)}
    mask_token_id: int = 151665
    block_size: int | None = None
    block_alignment: str = "completion"  # type: ignore[assignment]


class A2dQwen2ForMaskedLM(DecoderForMaskedLM):
    """The adapted Qwen2 with its head."""

    config_class = A2dQwen2Config
    trunk_class = without_causal_mask(Qwen2Model)
