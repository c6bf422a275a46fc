"""Read adapter_config.json, peft's settings of an adapter, and check it against the weights."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.models.adapter_files import ADAPTER, ADAPTER_CONFIG, has_all_weights, shard_digests
from dopsd.models.checkpoint_files import header

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import ValidationError

    from dopsd.models.config import AdapterConfig

# filled with the names of the block list and of the layers: a head of the same name never matches
TARGETS = r".*\.{}\.\d+\.({})"
NESTED_TARGETS = r".*\.{}\.\d+\.\w+\.({})"  # of blocks that keep layers in parts: self_attn, mlp
# every field of peft's LoraConfig is in one of these; a test compares them with the class
COMPUTED = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
HARMLESS = (  # they describe the file, or serve a field that is refused
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "runtime_config", "megatron_core", "qalora_group_size", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
)
REFUSED = (  # they change what is computed; none may be set, and no field that is unknown here
    *("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias"),
    *("fan_in_fan_out", "bias", "init_lora_weights", "exclude_modules", "layers_to_transform"),
    *("layers_pattern", "layer_replication", "megatron_config", "trainable_token_indices"),
    *("target_parameters", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config"),
    *("velora_config", "kasa_config", "monteclora_config"),
)
UNSET: tuple[object, ...] = (None, False, "", [], {})
ALLOWED = {  # values that leave the base as it is: not pissa, olora, corda, loftq, lora_ga
    "bias": (*UNSET, "none"),
    "init_lora_weights": (*UNSET, True, "gaussian", "orthogonal", "eva"),
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read peft's settings of the adapter in this folder.

    Raises:
        DopsdError: if the file is missing or damaged.
    """
    path = folder / ADAPTER_CONFIG
    if not path.is_file():  # reading a pipe or a device would never end
        raise DopsdError(
            f"{folder}: no {ADAPTER_CONFIG}; name the folder of a checkpoint", code=Code.NO_ADAPTER
        )
    try:
        settings = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{path}: not valid JSON ({error}); restore the file from the source of the adapter",
            code=Code.ADAPTER_DAMAGED,
        ) from error
    if not isinstance(settings, dict):
        raise DopsdError(
            f"{path}: expected a JSON object, found a {type(settings).__name__}; restore the file",
            code=Code.ADAPTER_DAMAGED,
        )
    return settings


def lora_of(folder: Path) -> AdapterConfig:
    """Return the LoRA settings with which a checkpoint was trained, from peft's file.

    Raises:
        DopsdError: if the file is missing or damaged, describes anything but plain LoRA, or has
            another rank than the weights.
    """
    from pydantic import ValidationError

    from dopsd.models.config import AdapterConfig

    settings = read_config(folder)
    unsupported = [
        f"{name} {value!r:.40}"
        for name, value in sorted(settings.items())
        if name not in (*COMPUTED, *HARMLESS) and value not in ALLOWED.get(name, UNSET)
    ]
    if unsupported or settings.get("peft_type", "LORA") != "LORA":
        raise DopsdError(
            f"{folder / ADAPTER_CONFIG}: {', '.join(unsupported) or settings['peft_type']} is"
            " set; only plain LoRA is supported",
            code=Code.ADAPTER_KIND,
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
            f"{folder / ADAPTER_CONFIG} {problem}; name a checkpoint written by dopsd or peft",
            code=Code.ADAPTER_DAMAGED,
        ) from error
    _check_rank(config.r, folder)
    _note_base(folder, str(settings.get("base_model_name_or_path") or "base"))
    return config


@cache
def _note_base(folder: Path, name: str) -> None:
    if name != "base":  # which dopsd writes
        log(f"{folder}: trained on {name:.80}, as its file says; model.path must be that base")


def shape_of(folder: Path) -> AdapterConfig | None:
    """Return the LoRA settings of a checkpoint; None if it holds all weights.

    Raises:
        DopsdError: if the checkpoint is damaged, or neither plain LoRA nor written by dopsd.
    """
    if not has_all_weights(folder):
        return lora_of(folder)
    shard_digests(folder)
    return None


def check_shape(folder: Path, r: int, alpha: float, targets: list[str]) -> None:
    """Refuse an adapter that was trained with another rank, scaling or list of targets.

    Args:
        folder: the checkpoint of the adapter; only its config and headers are read.
        r: rank that it must have.
        alpha: as in `AdapterConfig`.
        targets: names of the layers, in any order.

    Raises:
        DopsdError: if the settings differ.
    """
    saved = lora_of(folder)
    wanted = {"r": r, "alpha": alpha, "targets": sorted(targets)}
    trained = {"r": saved.r, "alpha": saved.alpha, "targets": sorted(saved.targets)}
    mismatched = [
        f"{name} {trained[name]} (train.lora gives {value})"
        for name, value in wanted.items()
        if trained[name] != value
    ]
    if mismatched:
        raise DopsdError(
            f"{folder}: the adapter was trained with {', '.join(mismatched)}; set train.lora to"
            " those values",
            code=Code.ADAPTER_MISFIT,
        )


def _check_rank(rank: int, folder: Path) -> None:
    """Refuse a rank that the weights do not have, before memory is allocated for it."""
    path = folder / ADAPTER
    if not path.is_file():
        raise DopsdError(
            f"{folder}: no {ADAPTER}; name the folder of a checkpoint", code=Code.NO_ADAPTER
        )
    mismatched = [
        name for name, shape in header(path).items() if ".lora_A." in name and shape[:1] != (rank,)
    ]
    if mismatched:
        raise DopsdError(
            f"{folder}: {ADAPTER_CONFIG} has r {rank}, but {mismatched[0]!r} in {ADAPTER} has"
            " another rank; restore both files",
            code=Code.ADAPTER_DAMAGED,
        )


def target_names(target_modules: str | list[str]) -> list[str]:
    """Return the module names that an adapter targets.

    Args:
        target_modules: a list of names, or the pattern that `attach` writes; for any other pattern
            the result is empty.
    """
    if not isinstance(target_modules, str):
        return target_modules
    for pattern in (TARGETS, NESTED_TARGETS):
        written = re.escape(pattern).replace(r"\{\}", r"([\w|]+)")
        if match := re.fullmatch(written, target_modules):
            return match[2].split("|")
    return []


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{fault['loc'][0]} {fault['input']!r}: {fault['msg']}" for fault in error.errors()
    )
