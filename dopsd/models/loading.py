"""Load a base from a folder onto the device of this process, as section `model` asks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.architecture import config_of, read_config, require_members
from dopsd.models.checkpoint_files import check_finite, check_folder, file_tensors
from dopsd.models.device import keep_freed_memory, own_device

if TYPE_CHECKING:
    import torch
    from transformers import BitsAndBytesConfig

    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import Denoiser, DenoiserConfig

NEEDS = {
    "nf4": ("quantization", "bitsandbytes", "nf4"),
    "flash_attention_2": ("attention", "flash_attn", "gpu"),
    "liger": ("kernels", "liger_kernel", "liger"),
}
# variants of a block's graph: with and without gradients, adapters, padding, several rows; torch's
# default of 8 is too few
RECOMPILE_LIMIT = 32


def check_kernels(model: ModelConfig, device: torch.device) -> None:
    """Refuse settings that this machine cannot compute.

    Without the check, transformers would look for a kernel on the network.

    Raises:
        DopsdError: if a package, a GPU or a compiler is missing.
    """
    for value, (key, library, extra) in NEEDS.items():
        if vars(model)[key] == value:
            if find_spec(library) is None:
                raise DopsdError(
                    f"model.{key}: {value} needs {library}, which is not installed: pip install"
                    f" 'dopsd[{extra}]'",
                    code=Code.PACKAGE_MISSING,
                )
            if device.type != "cuda":
                raise DopsdError(
                    f"model.{key}: {value} needs an NVIDIA GPU, and none was found; leave the key"
                    " out",
                    code=Code.NO_GPU,
                )
    compiler = (
        os.environ.get("CC", "gcc") if device.type == "cuda" else os.environ.get("CXX", "g++")
    )
    if model.compile and which(compiler) is None:
        raise DopsdError(
            f"model.compile needs a compiler, and {compiler} was not found; install {compiler} or"
            " leave the key out",
            code=Code.COMPILER,
        )


def attention_of(model: ModelConfig, device: torch.device) -> str:
    """Return the attention implementation to use.

    `auto` is flash attention if its package, a GPU and bfloat16 are there, else sdpa.
    """
    if model.attention != "auto":
        return model.attention
    can_flash = (
        find_spec("flash_attn") is not None and device.type == "cuda" and model.dtype == "bfloat16"
    )
    return "flash_attention_2" if can_flash else "sdpa"


def kernels_of(
    model: ModelConfig, device: torch.device, config: DenoiserConfig | None = None
) -> str:
    """Return the kernels to use.

    `auto` is liger if its package, a GPU, a C compiler (for Triton) and the architecture's fused
    kernels are there, else torch. The config is read from model.path unless it is given.
    """
    if model.kernels != "auto":
        return model.kernels
    has_compiler = any(which(name) for name in (os.environ.get("CC", "gcc"), "clang"))
    if device.type != "cuda" or find_spec("liger_kernel") is None or not has_compiler:
        return "torch"
    config = config or read_config(Path(model.path))
    return "liger" if config.has_fused_kernels else "torch"


def resolved(model: ModelConfig) -> ModelConfig:
    """Return the settings with `auto` replaced by what this machine computes.

    Results are identified by these settings, so they must not contain `auto`.
    """
    if not model.has_auto:
        return model
    device = own_device()
    return model.model_copy(
        update={"attention": attention_of(model, device), "kernels": kernels_of(model, device)}
    )


def fuse(weights: Denoiser, kernels: str) -> None:
    """Compute with fused kernels from now on, if `kernels` is liger.

    Raises:
        DopsdError: if the architecture has none.
    """
    if kernels != "liger":
        return
    if not weights.config.has_fused_kernels:
        raise DopsdError(
            f"model.kernels: liger has no kernels for {weights.config.model_type}; set it to torch",
            code=Code.UNSUPPORTED_MODEL,
        )
    weights.fuse()


def compile_blocks(model: Denoiser) -> None:
    """Compile the blocks for any length and batch size; all blocks share one compiled graph."""
    import torch

    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    for block in model.blocks():
        block.compile(dynamic=True)


def nf4(head: str) -> BitsAndBytesConfig:
    """Return the settings of 4-bit NormalFloat weights (QLoRA, arXiv 2305.14314).

    Scales are quantised too; computation is in bfloat16.

    Args:
        head: full name of the head, which stays whole.
    """
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=[head],
    )


def load_base(model: ModelConfig, device: torch.device, on_host: bool = False) -> Denoiser:
    """Load the frozen base in eval mode; no code in its folder is run.

    The folder is checked before loading, the weights after.

    Args:
        model: the base and how it is computed.
        device: where to compute.
        on_host: keep the weights in main memory, to be sharded onto the device later.

    Raises:
        DopsdError: if the checkpoint is missing or damaged, or this machine cannot compute it.
    """
    folder = Path(model.path)
    require_base(folder)
    check_kernels(model, device)
    if device.type == "cpu":
        keep_freed_memory()
    weights = read_weights(model, device, on_host)
    if model.quantization == "none":
        check_finite(weights.named_parameters(), folder)
    else:  # 4-bit codes are always finite
        check_finite(file_tensors(folder), folder)
    fuse(weights, kernels_of(model, device, weights.config))
    if model.compile:
        compile_blocks(weights)
    weights.eval()
    weights.requires_grad_(False)
    return weights


def require_base(folder: Path) -> None:
    """Refuse a folder without a model.

    Raises:
        DopsdError: if there is no config.json.
    """
    if not (folder / "config.json").is_file():
        raise DopsdError(
            f"model.path: no config.json in {folder} (from {Path.cwd()}); download the checkpoint"
            " to that folder, or run `dopsd pretrain` for the embedded base",
            code=Code.NO_MODEL,
        )


def build_model(config: DenoiserConfig) -> Denoiser:
    """Build a model of this config with fresh weights."""
    from transformers import AutoModelForMaskedLM

    model: Denoiser = AutoModelForMaskedLM.from_config(config)
    return model


def read_weights(model: ModelConfig, device: torch.device, on_host: bool) -> Denoiser:
    """Load the weights onto the device, one tensor at a time.

    On a GPU, main memory never holds a second copy.

    Args:
        model: the base and how it is computed.
        device: where to compute.
        on_host: keep the weights in main memory.

    Raises:
        DopsdError: if the files do not match config.json.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    from dopsd.models.denoiser import Denoiser

    config = config_of(model)
    check_folder(Path(model.path), config)
    weights: Denoiser = AutoModelForMaskedLM.from_pretrained(
        model.path,
        config=config,
        dtype=getattr(torch, model.dtype),
        attn_implementation=attention_of(model, device),
        quantization_config=None if model.quantization == "none" else nf4(config.head_module),
        device_map=None if on_host or device.type == "cpu" else {"": device},
        use_safetensors=True,
        local_files_only=True,
    )
    require_members(weights.config.model_type, weights, Denoiser)
    return weights
