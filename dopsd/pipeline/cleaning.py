"""`dopsd clean`: remove training folders that no run would continue."""

from __future__ import annotations

import fcntl
import shutil
from typing import TYPE_CHECKING

from dopsd.core.files import ASIDE, WORK
from dopsd.core.progress import log
from dopsd.training.older import older_folders
from dopsd.training.other_releases import of_other_releases
from dopsd.training.resuming import record_of, steps_of
from dopsd.training.run_settings import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params


def _is_in_use(folder: Path) -> bool:
    """Tell whether a trainer or a push holds the folder's lock."""
    if not (folder / "lock").is_file():
        return False
    with (folder / "lock").open(encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def clean(params: Params) -> None:
    """Remove training folders that no run or variant of params.yaml would continue.

    Also removed are work/aside, and merged models that a killed `dopsd push` left.

    Kept are folders of the same run with another number of updates. Kept too are folders of other
    releases, while the run that could continue them has no checkpoint of its own.
    """
    a, runs = params.ablate, params.runs
    if a.task in params.matrix.tasks:
        runs += [params.run(a.task, n, s) for n in params.variants for s in a.seeds]
    current = [(run, scratch_folder(run)) for run in runs]
    kept_folders = {
        folder
        for _, current_folder in current
        for folder in WORK.glob(f"{current_folder.name.rpartition('-')[0]}-*")
    }
    kept_folders |= {
        folder
        for run, current_folder in current
        if not record_of(current_folder)
        for folder in older_folders(run)
    }
    kept_folders |= {
        folder
        for run, current_folder in current
        if not steps_of(current_folder)
        for folder in of_other_releases(run)
    }
    obsolete = [
        folder
        for folder in sorted([*WORK.glob("train-*"), *WORK.glob("push-*"), *ASIDE.glob("*")])
        if folder not in kept_folders
    ]
    locked = [folder for folder in obsolete if _is_in_use(folder)]
    for folder in obsolete:
        if folder in locked:
            log(f"clean: {folder}: kept, it is in use")
        else:
            shutil.rmtree(folder)
    log(
        f"clean: removed {len(obsolete) - len(locked)} folders that no run of params.yaml continues"
        f" from {WORK}/, kept {len(kept_folders)}"
    )
