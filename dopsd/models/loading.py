"""Load a base from a folder onto the device of this process, as section `model` asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.models.backends import attention_of, check_kernels, dtype_of, kernels_of
from dopsd.models.checkpoint_files import check_finite, check_folder, check_repeated, file_tensors
from dopsd.models.device import keep_freed_memory
from dopsd.models.registry import config_of, require_members

if TYPE_CHECKING:
    import torch
    from transformers import BitsAndBytesConfig

    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import Denoiser, DenoiserConfig

# variants of a block's graph: with and without gradients, adapters, padding, several rows; torch's
# default of 8 is too few
RECOMPILE_LIMIT = 32


def fuse(weights: Denoiser, kernels: str) -> None:
    """Compute with fused kernels from now on, if `kernels` is liger."""
    if kernels != "liger":
        return
    if not weights.config.has_fused_kernels:
        raise Code.UNSUPPORTED_MODEL.error(
            f"model.kernels: liger has no kernels for {weights.config.model_type}; set it to torch"
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
        on_host: keep the weights in main memory, to be sharded onto the device later.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    from dopsd.models.denoiser import Denoiser

    folder = Path(model.path)
    require_base(folder)
    check_kernels(model, device)
    if device.type == "cpu":
        keep_freed_memory()
    dtype = dtype_of(model, device)
    if (model.dtype, dtype, device.type) == ("auto", "bfloat16", "cpu"):
        log("model.dtype: auto: this processor has AMX, so results are rounded to bfloat16")
    config = config_of(model)
    check_folder(folder, config)
    weights: Denoiser = AutoModelForMaskedLM.from_pretrained(  # tensor by tensor, onto the GPU
        folder,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=attention_of(model, device, config),
        quantization_config=None if model.quantization == "none" else nf4(config.head_module),
        device_map=None if on_host or device.type == "cpu" else {"": device},
        use_safetensors=True,
        local_files_only=True,
    )
    require_members(weights.config.model_type, weights, Denoiser)
    check_repeated(folder, weights.config)
    if model.quantization == "none":
        check_finite(weights.named_parameters(), folder)
    else:  # 4-bit codes are always finite
        check_finite(file_tensors(folder), folder)
    if model.cuda_graphs and weights.config.idle_parameters:
        raise Code.UNSUPPORTED_MODEL.error(
            f"model.cuda_graphs: {weights.config.model_type} asks the GPU which experts have"
            " tokens, which cannot be recorded; set it to false"
        )
    fuse(weights, kernels_of(model, device, weights.config))
    if model.compile:
        compile_blocks(weights)
    weights.eval()
    weights.requires_grad_(False)
    return weights


def require_base(folder: Path) -> None:
    """Refuse a folder without a model."""
    if not (folder / "config.json").is_file():
        raise Code.NO_MODEL.error(
            f"model.path: no config.json in {folder} (from {Path.cwd()}); download the checkpoint"
            " to that folder, or make it: `dopsd pretrain`, or `dopsd adapt`"
        )


def build_model(config: DenoiserConfig) -> Denoiser:
    """Build a model of this config with fresh weights."""
    from transformers import AutoModelForMaskedLM

    model: Denoiser = AutoModelForMaskedLM.from_config(config)
    return model
