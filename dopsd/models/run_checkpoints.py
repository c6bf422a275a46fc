"""Checkpoints of a finished run in runs/<task>/<method>/<seed>/train, and their digests.

DVC keeps the digests, in checkpoints.json, and no checkpoint but the selected one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.files import WORK, link, object_in
from dopsd.models.adapter_files import checkpoint_names, identity, read_digests, write_digests

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "checkpoints.json"  # digests of the checkpoints beside it, by folder


def copy_checkpoint(source: Path, target: Path) -> None:
    """Link a checkpoint's files into a new folder, without those that only resuming needs."""
    target.mkdir()
    for name in checkpoint_names(source):
        link(source / name, target / name)
    write_digests(target)


def run_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a finished run that are here, oldest first.

    After `dvc checkout` its folder may hold those of another run; the right ones may be in work/.

    Args:
        folder: runs/<task>/<method>/<seed>/train.
    """
    scratch = WORK / object_in(folder.with_suffix(".json")).get("fingerprint", "")
    steps = [
        next((p / name for p in (folder, scratch) if _holds(p / name, digest)), None)
        for name, digest in sorted(object_in(folder / MANIFEST).items())
    ]
    return [step for step in steps if step]


def _holds(step: Path, digest: str) -> bool:
    path = identity(step)
    return path.is_file() and read_digests(step).get(path.name) == digest
