"""The files of a checkpoint, checked against their digests: an adapter, or all weights.

A checkpoint of all weights has config.json, shards, and their index with a digest of each shard, so
that one file, the adapter or the index, identifies the weights of either kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import object_in, parse_object, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.tensor_files import load_tensors
from dopsd.models.checkpoint_files import INDEX

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
DIGESTS = "digests.json"
SHARDS = "sha256"  # key of the index' metadata: the digest of each shard


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests of a checkpoint's files, by name; none if they are missing or damaged."""
    return object_in(folder / DIGESTS)


def write_digests(folder: Path) -> None:
    """Write the SHA-256 digests of a folder's files into the folder."""
    write_json(
        folder / DIGESTS, {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.name != DIGESTS}
    )


def has_all_weights(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of all weights, and not an adapter."""
    return (folder / INDEX).is_file() and not (folder / ADAPTER).is_file()


def identity(folder: Path) -> Path:
    """Return the file whose digest identifies a checkpoint's weights."""
    return folder / (INDEX if has_all_weights(folder) else ADAPTER)


def weight_names(folder: Path) -> list[str]:
    """Return the names of a checkpoint's files of weights.

    Raises:
        DopsdError: if it has all weights, and the index lacks a shard's digest.
    """
    return sorted(shard_digests(folder)) if has_all_weights(folder) else [ADAPTER]


def checkpoint_names(folder: Path) -> list[str]:
    """Return the names of all files that make a checkpoint: config first, then weights.

    Raises:
        DopsdError: if it has all weights, and the index lacks a shard's digest.
    """
    if has_all_weights(folder):
        return [MODEL_CONFIG, INDEX, *weight_names(folder)]
    return [ADAPTER_CONFIG, ADAPTER]


def shard_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each shard of a checkpoint of all weights.

    Raises:
        DopsdError: if the index is missing or damaged, or lacks a digest.
    """
    try:
        index = parse_object((folder / INDEX).read_bytes(), INDEX)
        digests: dict[str, str] = index["metadata"][SHARDS]
        is_whole = {*index["weight_map"].values()} == digests.keys()
    except (OSError, DopsdError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole or any("/" in name for name in digests):
        raise DopsdError(
            f"{folder / INDEX}: no digest of each shard; name a checkpoint that dopsd wrote",
            code=Code.ADAPTER_DAMAGED,
        )
    return digests


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read the adapter weights of a published or scratch checkpoint, by peft's names.

    Raises:
        DopsdError: if the file is missing, or does not match its digest.
    """
    if not (folder / ADAPTER).is_file():
        raise DopsdError(
            f"{folder}: no {ADAPTER}; name the folder of a checkpoint", code=Code.NO_ADAPTER
        )
    check_sealed(folder, ADAPTER)
    return load_tensors(folder / ADAPTER)


def check_shards(folder: Path) -> None:
    """Refuse a checkpoint of all weights whose files do not match their digests.

    Raises:
        DopsdError: if a file is missing or damaged.
    """
    check_sealed(folder, INDEX)
    for name, digest in shard_digests(folder).items():
        _require(folder / name, digest)


def check_sealed(folder: Path, name: str) -> None:
    """Refuse a file that does not match its digest in a folder with digests.

    Raises:
        DopsdError: if it does not match.
    """
    if (folder / DIGESTS).is_file():
        _require(folder / name, read_digests(folder).get(name))


def _require(path: Path, digest: str | None) -> None:
    if not path.is_file() or sha256(path) != digest:
        raise DopsdError(
            f"{path}: does not match its digest; run `dvc checkout --force {path.parent}` to"
            " restore the file",
            code=Code.ADAPTER_DAMAGED,
        )
