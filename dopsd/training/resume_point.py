"""Resume points of pretraining: safetensors files that hold a digest of their contents."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from dopsd.core.errors import DopsdError
from dopsd.core.tensor_files import fsync_rename, load_tensors, save_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def write_resume_point(state: dict[str, Tensor], path: Path) -> None:
    """Write tensors and their digest to a file, under a temporary name first."""
    tmp = path.with_suffix(".tmp")
    save_tensors(state | {"digest": _digest(state)}, tmp)
    fsync_rename(tmp, path)


def read_resume_point(path: Path) -> dict[str, Tensor]:
    """Read a resume point; return an empty dict if it is damaged."""
    try:
        state = load_tensors(path)
    except DopsdError:
        return {}
    digest = state.pop("digest", torch.empty(0))
    return state if digest.tolist() == _digest(state).tolist() else {}


def _digest(state: dict[str, Tensor]) -> Tensor:
    """Return the SHA-256 digest of all names, dtypes, shapes and values, as 32 bytes.

    The digest is part of the file, because a second file could not be renamed together with it.
    """
    hasher = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        hasher.update(
            f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()
        )
    return torch.tensor([*hasher.digest()], dtype=torch.uint8)
