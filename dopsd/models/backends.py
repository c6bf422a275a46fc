"""Choose what computes a model on this machine: the attention, and the kernels of its blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.machine import device_name, package_version
from dopsd.models.device import own_device
from dopsd.models.registry import config_of, read_config

if TYPE_CHECKING:
    import torch

    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import DenoiserConfig

NEEDS = {
    "nf4": ("quantization", "bitsandbytes", "nf4"),
    "flash_attention_2": ("attention", "flash_attn", "gpu"),
    "liger": ("kernels", "liger_kernel", "liger"),
}


def check_kernels(model: ModelConfig, device: torch.device) -> None:
    """Refuse settings that this machine cannot compute.

    Without the check, transformers would look for a kernel on the network.
    """
    for value, (key, library, extra) in NEEDS.items():
        if vars(model)[key] == value:
            if find_spec(library) is None:
                raise Code.PACKAGE_MISSING.error(
                    f"model.{key}: {value} needs {library}, which is not installed: pip install"
                    f" 'dopsd[{extra}]'"
                )
            if device.type != "cuda":
                raise Code.NO_GPU.error(
                    f"model.{key}: {value} needs an NVIDIA GPU, and none was found; leave the key"
                    " out"
                )
    if model.cuda_graphs and device.type != "cuda":
        raise Code.NO_GPU.error(
            "model.cuda_graphs: needs an NVIDIA GPU, and none was found; leave the key out"
        )
    compiler = (
        os.environ.get("CC", "gcc") if device.type == "cuda" else os.environ.get("CXX", "g++")
    )
    if model.compile and which(compiler) is None:
        raise Code.COMPILER.error(
            f"model.compile needs a compiler, and {compiler} was not found; install {compiler} or"
            " leave the key out"
        )


def dtype_of(model: ModelConfig, device: torch.device | None = None) -> str:
    """Return the dtype of weights and activations.

    `auto` is bfloat16 on a GPU, and on a CPU whose AMX multiplies it faster than float32.

    Args:
        device: where it computes; None: own_device().
    """
    if model.dtype != "auto":
        return model.dtype
    import torch

    device = device or own_device()
    is_fast = device.type == "cuda" or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if is_fast else "float32"


def attention_of(
    model: ModelConfig, device: torch.device, config: DenoiserConfig | None = None
) -> str:
    """Return the attention implementation to use.

    `auto` is flash attention if its package, a GPU and bfloat16 are there, else sdpa; a
    block-causal base has sdpa alone. The config is that of model.path unless it is given.
    """
    if model.attention == "sdpa":
        return model.attention
    if config is None and (Path(model.path) / "config.json").is_file():
        config = config_of(model)
    if config is not None and config.attention_pattern == "block_causal":
        if model.attention == "auto":
            return "sdpa"
        raise Code.UNSUPPORTED_MODEL.error(
            f"model.attention: {model.attention} takes no mask of blocks, and this base is"
            " block-causal; set it to sdpa"
        )
    if model.attention != "auto":
        return model.attention
    can_flash = (
        find_spec("flash_attn") is not None
        and device.type == "cuda"
        and dtype_of(model, device) == "bfloat16"
    )
    return "flash_attention_2" if can_flash else "sdpa"


def kernels_of(
    model: ModelConfig, device: torch.device, config: DenoiserConfig | None = None
) -> str:
    """Return the kernels to use.

    `auto` is liger if it can run here, the architecture has fused kernels and the base is wide,
    else torch. The config is read from model.path unless it is given.
    """
    if model.kernels != "auto":
        return model.kernels
    if not has_liger(device):
        return "torch"
    config = config or read_config(Path(model.path))
    return "liger" if config.is_fused_by_auto else "torch"


def has_liger(device: torch.device) -> bool:
    """Return whether fused kernels can run: their package, a GPU, a C compiler for Triton."""
    has_compiler = any(which(name) for name in (os.environ.get("CC", "gcc"), "clang"))
    return device.type == "cuda" and find_spec("liger_kernel") is not None and has_compiler


def resolved(model: ModelConfig) -> ModelConfig:
    """Return the settings with `auto` replaced by what this machine computes.

    Results are identified by these settings, so they must not contain `auto`.
    """
    if not model.has_auto:
        return model
    device = own_device()
    return model.model_copy(
        update={
            "dtype": dtype_of(model, device),
            "attention": attention_of(model, device),
            "kernels": kernels_of(model, device),
        }
    )


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
    """Return the record of a score."""
    left_out = {"path", "prompt_style", "cuda_graphs"}
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
