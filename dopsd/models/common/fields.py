"""Check the fields of config.json: what is required, and what a model class computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
