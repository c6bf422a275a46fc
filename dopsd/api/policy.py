"""A model from a folder, with an adapter if asked, as a policy."""

import re
from pathlib import Path
from typing import get_args

import torch

from dopsd.core.errors import Code, unknown
from dopsd.models.adapter_files import shape_of
from dopsd.models.config import AdapterConfig, Dtype, ModelConfig
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.llm_policy import load_policy as load
from dopsd.pipeline.new_project import TEMPLATE


def load_policy(
    folder: str | Path,
    adapter: str | Path | AdapterConfig | None = None,
    device: str | None = None,
    dtype: Dtype = "float32",
    seed: int = 0,
    block_size: int | None = None,
) -> LlmPolicy:
    """Load a base model and its tokenizer, with an adapter if asked.

    Args:
        folder: a checkpoint in the layout of the Hugging Face hub: config.json, safetensors,
            tokenizer. No code in it is run.
        adapter: a checkpoint folder of a run, or the shape of a fresh adapter to train; None: the
            base alone. That, and a checkpoint of all weights, have nothing to train.
        device: such as `cpu` or `cuda:0`; None: the GPU of this process, else the CPU.
        dtype: of the base's weights, `float32` or `bfloat16`.
        block_size: tokens of a block, as `model.block_size`; None: what config.json says.

    Returns:
        The policy, in eval mode: `policy.text` encodes and decodes, `policy.trainable()` has the
        parameters in training by name, `with policy.reference():` computes without the adapter.

    Raises:
        DopsdError: if the folder, the adapter or the device cannot be used.

    Example:
        >>> import dopsd
        >>> policy = dopsd.load_policy(
        ...     dopsd.embedded_base(), dopsd.AdapterConfig(r=4, alpha=4, dropout=0)
        ... )
        >>> policy.max_length, sum(p.numel() for p in policy.trainable().values()) > 0
        (256, True)
    """
    if dtype not in get_args(Dtype):
        raise Code.ARGUMENT.error(unknown(f"dtype {dtype}", get_args(Dtype)))
    if block_size is not None and (type(block_size) is not int or block_size < 1):
        raise Code.ARGUMENT.error(f"block_size {block_size}: expected a whole number above 0")
    model = ModelConfig(path=str(folder), dtype=dtype, block_size=block_size)
    target = _device(device)
    if not isinstance(adapter, None | str | Path | AdapterConfig):
        raise Code.ARGUMENT.error(
            f"adapter: expected a folder or an AdapterConfig, found {type(adapter).__name__}"
        )
    if adapter is None or isinstance(adapter, AdapterConfig):
        return load(model, adapter, seed, target)
    if not Path(adapter).is_dir():
        raise Code.NO_ADAPTER.error(
            f"adapter {adapter}: no such folder; name a checkpoint of a run"
        )
    policy = load(model, shape_of(Path(adapter)), seed, target)
    policy.load(Path(adapter))
    return policy


def _device(name: str | None) -> torch.device | None:
    if name is None:
        return None
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", str(name)):
        raise Code.ARGUMENT.error(f"device {name}: unknown; expected cpu, cuda or cuda:0")
    device, available = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= available:
        raise Code.NO_GPU.error(f"device {name}: this machine has {available} NVIDIA GPUs")
    return device


def embedded_base() -> Path:
    """Return the folder of the small base that comes with dopsd: 4x4 Sudoku, 0.9 million weights.

    Example:
        >>> import dopsd
        >>> sorted(path.suffix for path in dopsd.embedded_base().glob("model*"))
        ['.safetensors']
    """
    return TEMPLATE / "base" / "sudoku"
