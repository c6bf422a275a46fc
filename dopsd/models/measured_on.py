"""Record what computed a score: the device, how it computes, and the versions of packages.

The record has no times and no paths: the same device, settings and packages give the same bytes.
The number of threads of a CPU is left out, since processes that share a machine choose it by
themselves; it may change the last digits of logits.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dopsd.core.machine import device_name, package_version
from dopsd.models.backends import resolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from dopsd.models.config import ModelConfig

PACKAGES = ("dopsd", "torch", "transformers", "peft")
SETTINGS = ("device", "dtype", "quantization", "attention", "kernels", "compile", "batch_size")
ORDER = (*SETTINGS, *PACKAGES)  # of fields in texts; others follow by name
BARE = ("device", "dtype")  # fields whose values need no name
NONE = "none"  # of a package or a kernel that a score did not use
OFF = (NONE, "False")
# packages that compute only with a value of section `model`
OPTIONAL = {
    "flash_attention_2": "flash-attn",
    "liger": "liger-kernel",
    "nf4": "bitsandbytes",
}


def measured_on(model: ModelConfig, batch_size: int, device: torch.device) -> dict[str, Any]:
    """Return the record of a score.

    Args:
        model: how the base is computed: dtype, attention kernel and all else that rounds.
        batch_size: rows of a forward pass.
        device: where it is computed.
    """
    left_out = {"path", "prompt_style"}
    left_out |= {name for name in ("block_size", "block_alignment") if vars(model)[name] is None}
    settings = resolved(model).model_dump(exclude=left_out)
    optional = [OPTIONAL[value] for value in settings.values() if value in OPTIONAL]
    packages = {name: package_version(name) for name in (*PACKAGES, *optional)}
    return {
        "device": device_name(device),
        **settings,
        "batch_size": batch_size,
        "packages": packages,
    }


def distinct(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each record once, in an order that depends on the records alone."""
    by_text = {json.dumps(record, sort_keys=True): record for record in records}
    return [by_text[text] for text in sorted(by_text)]


def fields(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return each field of a score's records as text; several values are joined by `and`."""
    flat = [{**record, **record["packages"]} for record in records]
    found = {name for record in flat for name in record} - {"packages"}
    names = [*(name for name in ORDER if name in found), *sorted(found - {*ORDER})]
    values = {name: {str(record.get(name, NONE)) for record in flat} for name in names}
    return {name: " and ".join(sorted(texts)) for name, texts in values.items()}


def in_words(records: Sequence[dict[str, Any]]) -> str:
    """Return a score's records in one line, without what is switched off."""
    texts = [
        text if name in BARE else f"{name.replace('_', ' ')} {text}"
        for name, text in fields(records).items()
        if text not in OFF
    ]
    return ", ".join(texts)
