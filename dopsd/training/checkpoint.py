"""Checkpoints: write under a temporary name, verify by digest, resume from the newest intact one.

A folder step-N holds the adapter, or all weights. The two newest folders also hold what resuming
needs: the optimizer's moments, random states, the log, and the batches of the current collect that
no update has used yet, because newer weights cannot sample them again.
"""

import math
import re
import shutil
from pathlib import Path

from dopsd.core.fingerprint import sha256
from dopsd.core.paths import LOG
from dopsd.core.progress import log
from dopsd.core.tensor_files import fsync_rename
from dopsd.core.types import Checkpoint
from dopsd.models import adapter_files
from dopsd.models.checkpoint_files import INDEX

REPLACED = ".old"  # suffix of a checkpoint while a newer one of the same update takes its place
# files of every checkpoint, besides the shards of all weights, which the digests name
NEEDED = (adapter_files.ADAPTER, adapter_files.ADAPTER_CONFIG, "state.json")
NEEDED_WHOLE = (INDEX, adapter_files.MODEL_CONFIG, "state.json")
RESUMED = ("trainer", "batches", "log")  # first letters of the files that only resuming needs
KEPT_RESUMABLE = 2  # folders that keep these files: at 8B an adapter's take 2 GB a folder


def seal(tmp: Path, final: Path) -> None:
    """Finish a checkpoint: write digests, flush `tmp` to disk, then rename it to `final`."""
    adapter_files.write_digests(tmp)
    replaced = final.with_suffix(REPLACED)
    if final.exists():
        final.rename(replaced)
    fsync_rename(tmp, final)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacements(scratch: Path) -> None:
    """Restore checkpoints whose replacement was interrupted; remove replaced and partial ones."""
    for replaced in scratch.glob(f"step-??????{REPLACED}"):
        if replaced.with_suffix("").exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(replaced.with_suffix(""))
    for tmp in scratch.glob("step-??????.tmp"):
        shutil.rmtree(tmp)


def prune(scratch: Path, update: int) -> None:
    """Remove the files that only resuming needs from all but the newest folders up to `update`.

    Later folders exist when a run went back to before a damaged checkpoint. Once that checkpoint
    is made again, the run can resume from them.
    """
    older = [folder for folder in folders(scratch) if update_of(folder) <= update][:-KEPT_RESUMABLE]
    surplus = []
    for folder in reversed(older):
        paths = [path for path in folder.iterdir() if path.name.startswith(RESUMED)]
        if not paths:
            break  # the folders before it were pruned when they were the newest
        surplus.append(paths)
    for paths in reversed(surplus):  # oldest first, so that a kill leaves no gap to stop at
        for path in paths:
            path.unlink()


def drop_state(scratch: Path) -> None:
    """Remove what only resuming needs, but the log, from a run that nothing will continue."""
    for folder in folders(scratch):
        for path in folder.iterdir():
            if path.name.startswith(RESUMED) and path.name != LOG:
                path.unlink()


def folders(scratch: Path) -> list[Path]:
    """Return the checkpoint folders of a run by update, including damaged ones."""
    return sorted(scratch.glob("step-[0-9][0-9][0-9][0-9][0-9][0-9]"))


def update_of(folder: Path) -> int:
    """Return the update that a folder step-N holds."""
    return int(folder.name[5:])


def log_of(step: Path) -> Path:
    """Return a checkpoint's own copy of the log, or the folder's log if it has none any more."""
    return step / LOG if (step / LOG).is_file() else step.parent / LOG


def fault(folder: Path) -> str | None:
    """Return why a checkpoint cannot be used, or None if it is intact."""
    digests = adapter_files.read_digests(folder)
    if not digests:
        return f"{adapter_files.DIGESTS} is missing or damaged"
    invalid = [name for name in digests if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name)]
    needed = NEEDED_WHOLE if adapter_files.has_all_weights(folder) else NEEDED
    missing = [name for name in needed if name not in digests]
    if invalid or missing:
        return (
            f"{adapter_files.DIGESTS} names {invalid[0]!r}"
            if invalid
            else f"{adapter_files.DIGESTS} does not name {missing[0]}"
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
    """Return the intact checkpoints, oldest first; log and skip damaged ones."""
    usable = []
    for folder in folders(scratch):
        reason = fault(folder)
        if reason:
            log(f"checkpoint {folder}: {reason}; skipped")
        else:
            usable.append(
                Checkpoint(folder, update_of(folder), sha256(adapter_files.identity(folder)))
            )
    return usable


def newest_resumable(scratch: Path, every: int) -> Checkpoint | None:
    """Return the newest resumable checkpoint with no damaged one before it, or None.

    A damaged checkpoint is made again, because the finished run must have all of them.

    Args:
        every: train.checkpoint_every; a damaged checkpoint at another update does not matter.
    """
    usable = checkpoints(scratch)
    damaged = [
        update_of(folder) for folder in folders(scratch) if folder not in {c.path for c in usable}
    ]
    first_missed = min((update for update in damaged if update % every == 0), default=math.inf)
    sound = [c for c in usable if c.update < first_missed]
    resumable = [c for c in sound if (c.path / "trainer.safetensors").is_file()]
    return resumable[-1] if resumable else None
