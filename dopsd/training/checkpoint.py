"""Checkpoints: written under a temporary name, verified by digest, resumed from the newest that is
whole.

A folder step-N holds the adapter, and the two newest also what resuming needs: optimizer moments,
random state and the batches of the current collect that no update has used yet (newer weights could
not sample them again), and the log so far.
"""

from __future__ import annotations

import math
import re
import shutil
from typing import TYPE_CHECKING

from dopsd.algorithms.common.batch import Batch, batch_from
from dopsd.core.files import write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.progress import log
from dopsd.core.tensor_files import fsync_rename
from dopsd.core.types import Checkpoint
from dopsd.models.adapter_files import ADAPTER, DIGESTS, read_digests

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

REPLACED = ".old"  # suffix of a checkpoint while a newer one of the same update takes its place
NEEDED = (ADAPTER, "adapter_config.json", "state.json")
RESUMED = ("trainer", "batches", "log")  # how names of files start that only resuming needs
KEPT_RESUMABLE = 2  # folders that keep the optimizer: at 8B it is 2 GB a folder


def pack_updates(updates: list[list[Batch]]) -> dict[str, Tensor]:
    """Unused updates of a collect as named tensors: <update>.<batch>.<type>.<field>."""
    return {
        f"{u}.{b}.{type(batch).__name__}.{name}": tensor
        for u, batches in enumerate(updates)
        for b, batch in enumerate(batches)
        for name, tensor in batch.tensors().items()
    }


def unpack_updates(tensors: dict[str, Tensor], count: int) -> list[list[Batch]]:
    """Raises ValueError, KeyError, TypeError or IndexError where these are not what pack_updates
    made.
    """
    batch_tensors: dict[tuple[int, int, str], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        update, batch, kind, name = key.split(".")
        batch_tensors.setdefault((int(update), int(batch), kind), {})[name] = tensor
    updates: list[list[Batch]] = [[] for _ in range(count)]
    for (index, _, kind), values in sorted(batch_tensors.items()):
        updates[index].append(batch_from(kind, values))
    return updates


def write_digests(folder: Path) -> None:
    write_json(
        folder / DIGESTS, {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.name != DIGESTS}
    )


def seal(tmp: Path, final: Path) -> None:
    """Finish a checkpoint written in `tmp`: digests of its files, onto the disk, then its name."""
    write_digests(tmp)
    replaced = final.with_suffix(REPLACED)
    if final.exists():
        final.rename(replaced)
    fsync_rename(tmp, final)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacements(scratch: Path) -> None:
    """Put back a checkpoint whose replacement a kill cut short; remove what is half-written or
    replaced.
    """
    for replaced in scratch.glob(f"step-??????{REPLACED}"):
        if replaced.with_suffix("").exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(replaced.with_suffix(""))
    for tmp in scratch.glob("step-??????.tmp"):
        shutil.rmtree(tmp)


def prune(scratch: Path, update: int) -> None:
    """Drop what only resuming needs from all but the newest folders up to this update.

    Later ones are of a run that has gone back behind a damaged checkpoint: where that is made
    again, they can be continued.
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


def fault(folder: Path) -> str | None:
    """Why this checkpoint cannot be used, or None."""
    digests = read_digests(folder)
    if not digests:
        return f"{DIGESTS} is missing or damaged"
    invalid = [name for name in digests if not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", name)]
    missing = [name for name in NEEDED if name not in digests]
    if invalid or missing:
        return (
            f"{DIGESTS} names {invalid[0]!r}"
            if invalid
            else f"{DIGESTS} does not name {missing[0]}"
        )
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
    usable = []
    for folder in folders(scratch):
        reason = fault(folder)
        if reason:
            log(f"checkpoint {folder}: {reason}; it is not used")
        else:
            usable.append(Checkpoint(folder, update_of(folder), sha256(folder / ADAPTER)))
    return usable


def newest_resumable(scratch: Path, every: int) -> Checkpoint | None:
    """The newest checkpoint that can be continued and has no damaged one before it, which would be
    missing at the end.

    every: train.checkpoint_every; what was saved at other updates is not missed.
    """
    usable = checkpoints(scratch)
    damaged = [
        update_of(folder) for folder in folders(scratch) if folder not in {c.path for c in usable}
    ]
    first_missed = min((update for update in damaged if update % every == 0), default=math.inf)
    sound = [c for c in usable if c.update < first_missed]
    resumable = [c for c in sound if (c.path / "trainer.safetensors").is_file()]
    return resumable[-1] if resumable else None
