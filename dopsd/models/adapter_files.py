"""Read the weights of an adapter, checked against their digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import parse_object
from dopsd.core.fingerprint import sha256
from dopsd.core.tensor_files import load_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

ADAPTER = "adapter_model.safetensors"
DIGESTS = "digests.json"


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests of a checkpoint's files, by name; none if they are missing or damaged."""
    try:
        return parse_object((folder / DIGESTS).read_bytes(), DIGESTS)
    except (OSError, DopsdError):
        return {}


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read the adapter weights of a published or scratch checkpoint, by peft's names.

    Raises:
        DopsdError: if the file is missing, or does not match its digest.
    """
    if not (folder / ADAPTER).is_file():
        raise DopsdError(
            f"{folder}: no {ADAPTER}; name the folder of a checkpoint", code=Code.NO_ADAPTER
        )
    if (folder / DIGESTS).is_file() and sha256(folder / ADAPTER) != read_digests(folder).get(
        ADAPTER
    ):
        raise DopsdError(
            f"{folder / ADAPTER}: does not match its digest; run `dvc checkout --force {folder}`"
            " to restore the file",
            code=Code.ADAPTER_DAMAGED,
        )
    return load_tensors(folder / ADAPTER)
