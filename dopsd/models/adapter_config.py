"""adapter_config.json, peft's file of an adapter's settings: read, and held against the weights."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import DopsdError
from dopsd.models.checkpoint_files import header

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import ValidationError

    from dopsd.models.config import AdapterConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# of the blocks' name and the layers', so that a head of the same name is never adapted
TARGETS = r".*\.{}\.\d+\.({})"
PLAIN = (
    "use_dora",
    "use_rslora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "lora_bias",
)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():  # a pipe or a device would never end
        raise DopsdError(f"{folder}: no {CONFIG}; name the folder of a checkpoint")
    try:
        settings = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{path}: not valid JSON ({error}); restore it from where the adapter came"
        ) from error
    if not isinstance(settings, dict):
        raise DopsdError(
            f"{path}: expected settings by name, found a {type(settings).__name__}; restore it"
        )
    return settings


def lora_of(folder: Path) -> AdapterConfig:
    """The LoRA settings that a checkpoint was trained with, from peft's file; plain LoRA only."""
    from pydantic import ValidationError

    from dopsd.models.config import AdapterConfig

    settings = read_config(folder)
    unsupported = [name for name in PLAIN if settings.get(name)] + (
        ["bias"] if settings.get("bias", "none") != "none" else []
    )
    if unsupported or settings.get("peft_type", "LORA") != "LORA":
        raise DopsdError(
            f"{folder / CONFIG}: {', '.join(unsupported) or settings['peft_type']} is set; only"
            " plain LoRA can be read"
        )
    try:
        config = AdapterConfig(
            r=settings["r"],
            alpha=settings["lora_alpha"],
            dropout=settings.get("lora_dropout", 0.0),
            targets=target_names(settings["target_modules"]),
        )
    except (KeyError, ValidationError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else f"has {_faults(error)}"
        raise DopsdError(
            f"{folder / CONFIG} {problem}; name a checkpoint that this program or peft wrote"
        ) from error
    _check_rank(config.r, folder)
    return config


def _check_rank(rank: int, folder: Path) -> None:
    """Refuse a rank that the weights do not have, before memory is taken for it."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise DopsdError(f"{folder}: no {WEIGHTS}; name the folder of a checkpoint")
    mismatched = [
        name for name, shape in header(path).items() if ".lora_A." in name and shape[:1] != (rank,)
    ]
    if mismatched:
        raise DopsdError(
            f"{folder}: {CONFIG} has r {rank}, and {mismatched[0]!r} in {WEIGHTS} another; restore"
            " both files"
        )


def target_names(target_modules: str | list[str]) -> list[str]:
    """Module names: from the pattern that attach() writes, or as other tools list them. Anything
    else is left to fail.
    """
    if not isinstance(target_modules, str):
        return target_modules
    match = re.fullmatch(re.escape(TARGETS).replace(r"\{\}", r"([\w|]+)"), target_modules)
    return match[2].split("|") if match else []


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{fault['loc'][0]} {fault['input']!r}: {fault['msg']}" for fault in error.errors()
    )
