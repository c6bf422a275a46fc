"""Config of a decoder of transformers as a masked diffusion model, checked field by field."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from dopsd.core.errors import Code
from dopsd.models.denoiser import OF_THE_CLASS, DenoiserConfig

READ = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps"),
    "tie_word_embeddings",
)
WHOLE = (*READ[:-2], "head_dim")
ALLOWED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_dropout": (0.0,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (None, 1),
    "block_alignment": ("sequence", "completion"),
}
SCALES = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
TOY = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TOY |= {"num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16}


class DecoderConfig(DenoiserConfig):
    """Names of dopsd for the fields of a decoder's config.

    Derive from this class first, then from transformers' config class.
    """

    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "embedding_size": "vocab_size",
        "max_sequence_length": "max_position_embeddings",
        "weight_tying": "tie_word_embeddings",
    }
    # fields that a file must state, besides READ and the base of the rotary angles
    required: ClassVar[tuple[str, ...]] = ()
    # values that are computed, besides ALLOWED
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {}
    whole: ClassVar[tuple[str, ...]] = ()  # fields with a whole number above 0, besides WHOLE
    rope_types: ClassVar[tuple[str, ...]] = ()  # kinds of rotary angles, besides the plain ones

    def repeated_tensors(self) -> dict[str, str]:
        """The head, if its weights are those of the embedding: some files hold both."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.weight_tying else {}

    @property
    def attention_width(self) -> int:
        """Width of all heads of a layer together."""
        head = getattr(self, "head_dim", None) or self.hidden_size // self.num_attention_heads
        return int(head * self.num_attention_heads)

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of every linear layer of a block."""
        width, hidden, wide = self.hidden_size, self.intermediate_size, self.attention_width
        narrow = wide // self.num_attention_heads * self.num_key_value_heads
        shapes = {"q_proj": (width, wide), "k_proj": (width, narrow), "v_proj": (width, narrow)}
        return shapes | {
            "o_proj": (wide, width),
            "gate_proj": (width, hidden),
            "up_proj": (width, hidden),
            "down_proj": (hidden, width),
        }

    def toy(self) -> Self:
        """Return a tiny model of the same kind with the same tokens, for rehearsals in seconds."""
        return self._toy({})

    def _toy(self, changes: dict[str, Any]) -> Self:
        fields = self.to_dict() | TOY | changes
        fields.pop("layer_types", None)  # one entry for each layer of the whole model
        return type(self).from_dict(fields)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:  # noqa: ANN401
        """Return the config, without the hub's pointers to its own code."""
        cls.check(config_dict)
        left_out = {"auto_map", "attn_implementation"}
        optional = ("mask_token_id", "block_size", "rope_scaling", *cls.in_file)
        empty = {name for name in optional if config_dict.get(name) is None}
        fields = {k: value for k, value in config_dict.items() if k not in left_out | empty}
        config: Self = super().from_dict(fields, **kwargs)
        return config

    @classmethod
    def check(cls, raw: dict[str, Any]) -> None:
        """Refuse fields of config.json that the classes do not compute, as `from_dict` does."""
        scaling = raw.get("rope_scaling")
        given = raw.get("rope_parameters") or scaling or {}
        if not isinstance(given, dict):
            raise Code.MODEL_CONFIG.error(
                f"config.json has rope_parameters: {given!r}; expected a table"
            )
        rope = raw | {"rope_type": raw.get("rope_type") or given.get("type")} | given
        if scaling and (scaling != given or not rope["rope_type"]):
            rope["rope_type"] = f"unknown, rope_scaling {scaling!r:.60}"
        names = ("rope_theta", "rope_type", "partial_rotary_factor")
        raw = raw | {name: rope.get(name) for name in names}
        allowed = ALLOWED | {"rope_type": ("default", None, *cls.rope_types)} | cls.allowed
        fixed = [name for name in OF_THE_CLASS if name not in cls.in_file]
        allowed |= {name: (getattr(cls, name),) for name in fixed}
        check_fields(raw, cls.model_type, (*READ, "rope_theta", *cls.required), allowed)
        if rope["rope_type"] in cls.rope_types:
            check_fields(given, rope["rope_type"], SCALES, {})
            check_numbers(given, SCALES[-1:], SCALES[:-1])
        check_numbers(raw, (*WHOLE, "block_size", *cls.whole), ("rms_norm_eps", "rope_theta"))
        check_ids(raw, ("mask_token_id", "eos_token_id"), raw["vocab_size"])
        fields = {field.name for field in dataclasses.fields(cls)}
        check_known(raw, {*allowed, *WHOLE, *cls.required, *cls.whole, *cls.in_file, *fields})
        heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
        if heads % kv_heads or (raw["hidden_size"] % heads and not raw.get("head_dim")):
            raise Code.MODEL_CONFIG.error(
                f"config.json: num_attention_heads {heads} must be a multiple of"
                f" num_key_value_heads {kv_heads}, and without head_dim divide hidden_size"
                f" {raw['hidden_size']}"
            )
        kinds = raw.get("layer_types")
        if kinds and (not isinstance(kinds, list) or set(map(str, kinds)) != {"full_attention"}):
            raise Code.UNSUPPORTED_MODEL.error(
                f"config.json has layer_types: {kinds!r:.60}; this model computes full_attention"
                " only"
            )


HARMLESS = {  # fields that say nothing of the forward pass
    *("model_type", "auto_map", "attn_implementation", "torch_dtype", "dtype", "tokenizer_class"),
    *("use_cache", "bos_token_id", "pad_token_id", "max_window_layers", "sliding_window"),
    *("rope_theta", "rope_scaling", "initializer_range", "pretraining_tp", "unsloth_version"),
    *("router_aux_loss_coef", "fuse_cross_entropy", "ep_size"),
}
SHOWN = 5  # fields in a message
LARGEST = 2**53  # no field is larger, and NaN is not below


def check_fields(
    raw: Mapping[str, Any],
    name: str,
    required: Iterable[str],
    allowed: Mapping[str, tuple[object, ...]],
) -> None:
    """Refuse a config that lacks a field, or has a value that the model class does not compute.

    Such a value would load and be silently wrong.

    Args:
        required: fields that change the computation; none of them has a silent default.
        allowed: the values that are computed, by field; a missing field counts as the first.
    """
    missing = [field for field in required if raw.get(field) is None]
    if missing:
        raise Code.MODEL_CONFIG.error(
            f"config.json lacks {', '.join(missing)}; a {name} config must state all of them"
        )
    for field, values in allowed.items():
        if raw.get(field, values[0]) not in values:
            computed = f"{values[0]!r} only" if values[0] is not None else "no such thing"
            raise Code.UNSUPPORTED_MODEL.error(
                f"config.json has {field}: {raw[field]!r}; this model computes {computed}"
            )


def check_numbers(raw: Mapping[str, Any], whole: Iterable[str], real: Iterable[str]) -> None:
    """Refuse sizes that are no numbers above 0; a field may be missing."""
    kinds = {"a whole number": (whole, (int,)), "a number": (real, (int, float))}
    for expected, (fields, types) in kinds.items():
        for field in fields:
            value = raw.get(field)
            if value is None or (type(value) in types and 0 < value < LARGEST):
                continue
            raise Code.MODEL_CONFIG.error(
                f"config.json has {field}: {value!r}; expected {expected} above 0"
            )


def check_ids(raw: Mapping[str, Any], fields: Iterable[str], size: int) -> None:
    """Refuse token ids that are not rows of an embedding of `size` rows; a field may be missing."""
    for field in fields:
        value = raw.get(field)
        if value is not None and not (type(value) is int and 0 <= value < size):
            raise Code.MODEL_CONFIG.error(
                f"config.json has {field}: {value!r}; expected one id below the {size} rows of the"
                " embedding"
            )


def check_known(raw: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse fields that a model class does not know, unless their value is off, empty or 0."""
    unknown = sorted(field for field, value in raw.items() if value and field[:1] != "_")
    unknown = [field for field in unknown if field not in HARMLESS | set(known)]
    if "quantization_config" in unknown:
        raise Code.UNSUPPORTED_MODEL.error(
            "config.json has quantization_config: quantised weights are not read; take the"
            " checkpoint that was not quantised"
        )
    if unknown:
        shown = ", ".join(f"{field}: {raw[field]!r:.60}" for field in unknown[:SHOWN])
        raise Code.UNSUPPORTED_MODEL.error(
            f"config.json has {shown}, which is not verified for this model; remove what changes"
            " nothing of the forward pass"
        )
