"""Tensors in safetensors files, and renames that survive a power failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file.

    Raises:
        OSError: if writing fails; errno is ENOSPC for a full disk, else EIO.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(_apart(tensors), path, metadata)
    except SafetensorError as error:
        number = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(number, str(error), str(path)) from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, copied only where they share memory, as files cannot."""
    result: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        result[name] = tensor.detach().cpu().contiguous()
        storage = result[name].untyped_storage()
        if storage.nbytes() != result[name].nbytes or storage.data_ptr() in seen:
            result[name] = result[name].clone()
        seen.add(storage.data_ptr())
    return result


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise Code.WEIGHTS.error(
            f"{path}: not a whole safetensors file ({error}); restore the file, or create it again"
        ) from error


def fsync_rename(source: Path, target: Path) -> None:
    """Flush a file or folder to disk, then rename it."""
    for path in [source, *source.rglob("*")] if source.is_dir() else [source]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    source.rename(target)
    handle = os.open(target.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
