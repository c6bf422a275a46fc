"""`dopsd clean`: remove training folders that nothing would continue."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from dopsd.config import Params
from dopsd.layout import RunKey, scratch_folder
from dopsd.older import older_folders
from dopsd.other_releases import of_other_releases
from dopsd.progress import WORK, log
from dopsd.resuming import record_of, steps_of
from dopsd.run_identity import ASIDE


def _is_in_use(folder: Path) -> bool:
    """Whether a trainer holds its lock."""
    if not (folder / "lock").is_file():
        return False
    with (folder / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def clean(params: Params) -> None:
    """Remove training folders that no cell of params.yaml's matrix and no variant would continue, and what was set aside.

    Folders of other lengths of a run stay, and those of other releases that may be a cell's which has learnt nothing yet.
    """
    m, a = params.matrix, params.ablate
    run_keys = [RunKey(t, n, s) for t in m.tasks for n in m.methods for s in m.seeds]
    if a.task in m.tasks:
        run_keys += [RunKey(a.task, n, s) for n in params.variants for s in a.seeds]
    current = {run_key: scratch_folder(params, *run_key.parts) for run_key in run_keys}
    kept = {
        folder
        for own in current.values()
        for folder in WORK.glob(f"{own.name.rpartition('-')[0]}-*")
    }
    kept |= {
        folder
        for run_key, own in current.items()
        if not record_of(own)
        for folder in older_folders(params, run_key)
    }
    kept |= {
        folder
        for run_key, own in current.items()
        if not steps_of(own)
        for folder in of_other_releases(params, run_key)
    }
    gone = [
        folder for folder in sorted([*WORK.glob("train-*"), *ASIDE.glob("*")]) if folder not in kept
    ]
    busy = [folder for folder in gone if _is_in_use(folder)]
    for folder in gone:
        if folder in busy:
            log(f"clean: {folder}: a run is training in it; kept")
        else:
            shutil.rmtree(folder)
    log(
        f"clean: removed {len(gone) - len(busy)} folders that no run of params.yaml continues from {WORK}/, kept {len(kept)}"
    )
