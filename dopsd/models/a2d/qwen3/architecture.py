"""A Qwen3 decoder with another mask: Tiny-A2D (dllm-hub, 2025-12), OPDLM (arXiv 2606.06712), TIDE.

Tensor names and config are those of Qwen3. Importing this module registers model_type "a2d-qwen3"
with AutoConfig and AutoModelForMaskedLM.
"""

from typing import ClassVar

from transformers import Qwen3Config, Qwen3Model

from dopsd.models.a2d.config import A2dConfig
from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask


class A2dQwen3Config(A2dConfig, Qwen3Config):
    """Shape of a Tiny-A2D model.

    The published config.json names no mask; the tokenizers of the family add it as token 151669.
    """

    model_type = "a2d-qwen3"
    mask_token = "<|mask|>"
    # fine-tuned on chats alone (examples/a2d of ZHZisZZ/dllm), in which Qwen3's template writes an
    # empty thought before the last answer
    template_options = {"enable_thinking": False}  # noqa: RUF012
    required: ClassVar[tuple[str, ...]] = ("head_dim", "eos_token_id")
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {"attention_bias": (False,)}
    mask_token_id: int = 151669
    block_size: int | None = None
    block_alignment: str = "completion"  # type: ignore[assignment]


class A2dQwen3ForMaskedLM(DecoderForMaskedLM):
    """Tiny-A2D with its head."""

    config_class = A2dQwen3Config
    trunk_class = without_causal_mask(Qwen3Model)
