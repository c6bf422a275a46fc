"""Write and read all weights of a model: shards of safetensors, their index and config.json.

AutoModelForMaskedLM.from_pretrained reads such a folder.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING

from huggingface_hub import split_torch_state_dict_into_shards

from dopsd.core.fingerprint import sha256
from dopsd.core.tensor_files import save_tensors
from dopsd.models.adapter_files import SHARDS
from dopsd.models.checkpoint_files import INDEX, check_finite, check_folder, file_of, read_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import torch
    from huggingface_hub import StateDictSplit
    from torch import Tensor

    from dopsd.models.denoiser import Denoiser

PATTERN = "model{suffix}.safetensors"
SHARD = "5GB"  # as on the hub


def write_shards(
    shapes: Mapping[str, Tensor], tensor: Callable[[str], Tensor], folder: Path, size: str
) -> StateDictSplit:
    """Write tensors into files of a folder, with one file's tensors in memory at a time.

    Args:
        shapes: the tensors by name; they may be without values.
        tensor: returns a tensor's values.
        folder: an existing folder.
        size: the largest size of a file, such as 5GB; a larger tensor gets its own.

    Returns:
        Which file has which tensors.

    Raises:
        OSError: if the disk is full or a file cannot be written.
    """
    plan = split_torch_state_dict_into_shards(
        dict(shapes), filename_pattern=PATTERN, max_shard_size=size
    )
    for file, names in plan.filename_to_tensors.items():
        save_tensors({name: tensor(name) for name in names}, folder / file, {"format": "pt"})
    return plan


def write_index(plan: StateDictSplit, folder: Path, **metadata: object) -> None:
    """Write the index of shards, as transformers does, with more metadata."""
    index = {"metadata": plan.metadata | metadata, "weight_map": plan.tensor_to_filename}
    (folder / INDEX).write_text(
        json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def write_config(model: Denoiser, dtype: torch.dtype, folder: Path) -> None:
    """Write config.json of a model whose files have this dtype."""
    config = deepcopy(model.config)
    config.dtype, config.architectures = dtype, [type(model).__name__]
    config.save_pretrained(folder)


def save_whole(model: Denoiser, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a checkpoint of all weights.

    Args:
        model: the model, whose config is written.
        weights: its tensors by name, on any device.
        folder: an existing folder.

    Raises:
        OSError: if the disk is full or a file cannot be written.
    """
    plan = write_shards(weights, weights.__getitem__, folder, SHARD)
    digests = {file: sha256(folder / file) for file in plan.filename_to_tensors}
    write_index(plan, folder, **{SHARDS: digests})
    write_config(model, next(iter(weights.values())).dtype, folder)


def whole_tensors(model: Denoiser) -> dict[str, Tensor]:
    """Return the tensors that files of a model hold: of tied weights only the first."""
    tensors = model.state_dict()
    return {name: t for name, t in tensors.items() if name not in model.all_tied_weights_keys}


def file_values(model: Denoiser, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a folder's weights, which fit the model and are finite.

    Args:
        model: the model that is to take them.
        folder: a checkpoint of all weights, or a base.

    Raises:
        DopsdError: if tensors are missing, unknown, of another shape or not finite.
    """
    check_folder(folder, model.config)
    repeated = model.config.repeated_tensors()
    for name, path in file_of(folder).items():
        if name in repeated:
            continue
        tensor = read_tensor(path, name)
        check_finite([(name, tensor)], folder)
        yield name, tensor
