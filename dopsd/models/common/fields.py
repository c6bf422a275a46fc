"""Check the fields of config.json: what is required, and what a model class computes.

Each function raises a DopsdError whose message begins with `config.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HARMLESS = {  # fields that say nothing of the forward pass
    *("model_type", "auto_map", "attn_implementation", "torch_dtype", "dtype", "tokenizer_class"),
    *("use_cache", "bos_token_id", "pad_token_id", "max_window_layers", "sliding_window"),
    *("rope_theta", "initializer_range", "pretraining_tp", "unsloth_version"),
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
        raw: the fields of config.json.
        name: the architecture's name, for messages.
        required: fields that change the computation; none of them has a silent default.
        allowed: the values that are computed, by field; a missing field counts as the first.

    Raises:
        DopsdError: if a field is missing or has another value.
    """
    missing = [field for field in required if raw.get(field) is None]
    if missing:
        raise DopsdError(
            f"config.json lacks {', '.join(missing)}; a {name} config must state all of them",
            code=Code.MODEL_CONFIG,
        )
    for field, values in allowed.items():
        if raw.get(field, values[0]) not in values:
            computed = f"{values[0]!r} only" if values[0] is not None else "no such thing"
            raise DopsdError(
                f"config.json has {field}: {raw[field]!r}; this model computes {computed}",
                code=Code.UNSUPPORTED_MODEL,
            )


def check_numbers(raw: Mapping[str, Any], whole: Iterable[str], real: Iterable[str]) -> None:
    """Refuse sizes that are no numbers above 0; a field may be missing.

    Args:
        raw: the fields of config.json.
        whole: fields with a whole number.
        real: fields with any number.
    """
    kinds = {"a whole number": (whole, (int,)), "a number": (real, (int, float))}
    for expected, (fields, types) in kinds.items():
        for field in fields:
            value = raw.get(field)
            if value is None or (type(value) in types and 0 < value < LARGEST):
                continue
            raise DopsdError(
                f"config.json has {field}: {value!r}; expected {expected} above 0",
                code=Code.MODEL_CONFIG,
            )


def check_ids(raw: Mapping[str, Any], fields: Iterable[str], size: int) -> None:
    """Refuse token ids that are not rows of an embedding of `size` rows; a field may be missing."""
    for field in fields:
        value = raw.get(field)
        if value is not None and not (type(value) is int and 0 <= value < size):
            raise DopsdError(
                f"config.json has {field}: {value!r}; expected one id below the {size} rows of the"
                " embedding",
                code=Code.MODEL_CONFIG,
            )


def check_known(raw: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse fields that a model class does not know, unless their value is off, empty or 0."""
    unknown = sorted(field for field, value in raw.items() if value and field[:1] != "_")
    unknown = [field for field in unknown if field not in HARMLESS | set(known)]
    if "quantization_config" in unknown:
        raise DopsdError(
            "config.json has quantization_config: quantised weights are not read; take the"
            " checkpoint that was not quantised",
            code=Code.UNSUPPORTED_MODEL,
        )
    if unknown:
        shown = ", ".join(f"{field}: {raw[field]!r:.60}" for field in unknown[:SHOWN])
        raise DopsdError(
            f"config.json has {shown}, which is not verified for this model; remove what changes"
            " nothing of the forward pass",
            code=Code.UNSUPPORTED_MODEL,
        )
