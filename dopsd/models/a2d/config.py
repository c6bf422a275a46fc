"""Config that the adapted decoders share: their files say how the model predicts."""

from typing import Any, ClassVar

from dopsd.core.errors import Code
from dopsd.models.common.decoder_config import DecoderConfig


class A2dConfig(DecoderConfig):
    """Shape of an adapted decoder, and what its adaptation chose.

    Derive from this class first, then from transformers' config class. The defaults are those of
    dllm's Tiny-A2D, whose files do not name the fields of `in_file`; `dopsd adapt` writes all but
    template_options.
    """

    end_of_turn = "<|im_end|>"
    has_fused_kernels = True
    attention_patterns = ("bidirectional", "block_causal")
    required: ClassVar[tuple[str, ...]] = ("eos_token_id",)
    in_file: ClassVar[tuple[str, ...]] = (
        *("output_shift", "mask_token", "end_of_turn", "template_options"),
    )

    @classmethod
    def check(cls, raw: dict[str, Any]) -> None:
        """Refuse fields of config.json that the classes do not compute, as `from_dict` does."""
        super().check(raw)
        for name in cls.in_file:
            value, default = raw.get(name), getattr(cls, name)
            is_wrong = name == "output_shift" and value not in (0, 1)
            if value is not None and (type(value) is not type(default) or is_wrong):
                expected = {int: "0 or 1", str: "a text", dict: "a table"}[type(default)]
                raise Code.MODEL_CONFIG.error(
                    f"config.json has {name}: {value!r:.60}; expected {expected}"
                )
