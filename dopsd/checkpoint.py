"""Checkpoints: written under a temporary name, verified by digest, resumed from the newest that is whole.

A folder step-N holds the adapter, and the two newest also what resuming needs: optimizer moments, random state and
the batches of the current collect that no update has used yet (newer weights could not sample them again), and the log so far.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.batches import Batch, batch_from
from dopsd.errors import DopsdError
from dopsd.progress import log, parse_object, write_json
from dopsd.provenance import sha256, sources
from dopsd.types import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = "adapter_model.safetensors"
REPLACED = ".old"  # suffix of a checkpoint while a newer one of the same update takes its place
NEEDED = (ADAPTER, "adapter_config.json", "state.json")
DIGESTS = "digests.json"
RESUMED = ("trainer", "batches", "log")  # how names of files start that only resuming needs
KEPT_RESUMABLE = 2  # folders that keep the optimizer: at 8B it is 2 GB a folder


def fingerprint(sections: dict[str, Any], files: Sequence[Path], *modules: str) -> str:
    """16 hex digits that name a piece of work by its settings, its data and its code."""
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise DopsdError(f"{missing[0]}: no such file; `dvc repro` makes what is missing")
    parts = [json.dumps(sections, sort_keys=True)]
    parts += [f"{path.name} {sha256(path)}" for path in [*files, *sources(*modules)]]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors; what goes wrong on the disk is an OSError, a full one with errno ENOSPC."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(
            {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()},
            path,
        )
    except SafetensorError as error:
        number = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(number, str(error), str(path)) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DopsdError(
            f"{path}: not a whole safetensors file ({error}); make it again or restore it"
        ) from error


def fsync_rename(source: Path, target: Path) -> None:
    """Make sure the bytes are on disk, then give them their name."""
    for path in [source, *source.rglob("*")] if source.is_dir() else [source]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    source.rename(target)
    handle = os.open(target.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def pack_updates(updates: list[list[Batch]]) -> dict[str, Tensor]:
    """Unused updates of a collect as named tensors: <update>.<batch>.<type>.<field>."""
    return {
        f"{u}.{b}.{type(batch).__name__}.{name}": tensor
        for u, batches in enumerate(updates)
        for b, batch in enumerate(batches)
        for name, tensor in batch.tensors().items()
    }


def unpack_updates(tensors: dict[str, Tensor], count: int) -> list[list[Batch]]:
    """Raises ValueError, KeyError, TypeError or IndexError where these are not what pack_updates made."""
    found: dict[tuple[int, int, str], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        update, batch, kind, name = key.split(".")
        found.setdefault((int(update), int(batch), kind), {})[name] = tensor
    updates: list[list[Batch]] = [[] for _ in range(count)]
    for (update, _, kind), values in sorted(found.items()):
        updates[update].append(batch_from(kind, values))
    return updates


def write_digests(folder: Path) -> None:
    write_json(
        folder / DIGESTS, {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.name != DIGESTS}
    )


def seal(tmp: Path, final: Path) -> None:
    """Finish a checkpoint written in `half`: digests of its files, onto the disk, then its name."""
    write_digests(tmp)
    replaced = final.with_suffix(REPLACED)
    if final.exists():
        final.rename(replaced)
    fsync_rename(tmp, final)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacements(scratch: Path) -> None:
    """Put back a checkpoint whose replacement a kill cut short; remove what is half-written or replaced."""
    for replaced in scratch.glob(f"step-??????{REPLACED}"):
        if replaced.with_suffix("").exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(replaced.with_suffix(""))
    for tmp in scratch.glob("step-??????.tmp"):
        shutil.rmtree(tmp)


def prune(scratch: Path, update: int) -> None:
    """Drop what only resuming needs from all but the newest folders up to this update.

    Later ones are of a run that has gone back behind a damaged checkpoint: where that is made again, they can be continued.
    """
    for folder in [folder for folder in folders(scratch) if update_of(folder) <= update][
        :-KEPT_RESUMABLE
    ]:
        for path in [path for name in RESUMED for path in folder.glob(f"{name}*")]:
            path.unlink()


def folders(scratch: Path) -> list[Path]:
    """Checkpoints by update, damaged ones too."""
    return sorted(scratch.glob("step-[0-9][0-9][0-9][0-9][0-9][0-9]"))


def update_of(folder: Path) -> int:
    return int(folder.name[5:])


def _digests(folder: Path) -> dict[str, str]:
    """By name; none where the file is missing or damaged."""
    try:
        return parse_object((folder / DIGESTS).read_bytes(), DIGESTS)
    except (OSError, DopsdError):
        return {}


def fault(folder: Path) -> str | None:
    """Why this checkpoint cannot be used, or None."""
    digests = _digests(folder)
    if not digests:
        return f"{DIGESTS} is missing or damaged"
    odd = [name for name in digests if not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", name)]
    unnamed = [name for name in NEEDED if name not in digests]
    if odd or unnamed:
        return f"{DIGESTS} names {odd[0]!r}" if odd else f"{DIGESTS} does not name {unnamed[0]}"
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            if name.startswith(RESUMED):
                continue
            return f"{name} is missing"
        if sha256(path) != digest:
            return f"{name} does not match its digest"
    return None


def checkpoints(scratch: Path) -> list[Checkpoint]:
    """Whole checkpoints, oldest first; a damaged one is said and passed over."""
    found = []
    for folder in folders(scratch):
        why = fault(folder)
        if why:
            log(f"checkpoint {folder}: {why}; it is not used")
        else:
            found.append(Checkpoint(folder, update_of(folder), sha256(folder / ADAPTER)))
    return found


def newest_resumable(scratch: Path, every: int) -> Checkpoint | None:
    """The newest checkpoint that can be continued and has no damaged one before it, which would be missing at the end.

    every: train.checkpoint_every; what was saved at other updates is not missed.
    """
    whole = checkpoints(scratch)
    damaged = [
        update_of(folder) for folder in folders(scratch) if folder not in {c.path for c in whole}
    ]
    missed = min((update for update in damaged if update % every == 0), default=math.inf)
    sound = [c for c in whole if c.update < missed]
    resumable = [c for c in sound if (c.path / "trainer.safetensors").is_file()]
    return resumable[-1] if resumable else None


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Adapter weights of a published or scratch checkpoint."""
    if not (folder / ADAPTER).is_file():
        raise DopsdError(f"{folder}: no {ADAPTER}; name the folder of a checkpoint")
    if (folder / DIGESTS).is_file() and sha256(folder / ADAPTER) != _digests(folder).get(ADAPTER):
        raise DopsdError(
            f"{folder / ADAPTER}: does not match its digest; `dvc checkout --force {folder}` restores it"
        )
    return load_tensors(folder / ADAPTER)
