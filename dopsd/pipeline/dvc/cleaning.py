"""`dopsd clean`: remove training folders that no run would continue."""

from __future__ import annotations

import fcntl
import shutil
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.files import ASIDE, WORK, object_in
from dopsd.core.paths import ADAPTED
from dopsd.core.progress import log
from dopsd.training.pretraining.adapt import converted_folder
from dopsd.training.run_identity import identify
from dopsd.training.start import named_folder

if TYPE_CHECKING:
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


MADE = ("train-*", "push-*", "adapt-*")  # folders in work/ that commands make


def clean(params: Params) -> None:
    """Remove training folders that no run or variant of params.yaml would continue.

    Also removed are work/aside, merged models that a killed `dopsd push` left, and converted models
    that `adapt` no longer names.

    Kept are folders of the same run with another number of updates.
    """
    a, runs = params.ablate, params.runs
    if a.task in params.matrix.tasks:
        runs += [params.run(a.task, n, s) for n in params.variants for s in a.seeds]
    adapt, converted = params.adapt, converted_folder(params.adapt)
    for name in adapt.phases if converted.is_dir() else []:
        for run in [params.run(task, name, adapt.seed) for task in adapt.tasks]:
            runs += [run] if (named_folder(run) or converted).is_dir() else []
    kept_folders = {folder for run in runs for folder in identify(run).of_any_length}
    made = object_in(Path(params.model.path) / ADAPTED).get("run")  # a next phase would continue it
    kept_folders |= {WORK / made} if made and (WORK / made).is_dir() else set()
    obsolete = [
        folder
        for folder in sorted([*chain.from_iterable(map(WORK.glob, MADE)), *ASIDE.glob("*")])
        if folder not in kept_folders | {converted}
    ]
    locked = [folder for folder in obsolete if _is_in_use(folder)]
    for folder in obsolete:
        if folder in locked:
            log(f"clean: {folder}: kept, it is in use")
        else:
            shutil.rmtree(folder)
    count = len(obsolete) - len(locked)
    log(
        f"clean: removed {count} folder{'s' * (count != 1)} that no run of params.yaml continues"
        f" from {WORK}/, kept {len(kept_folders)}"
    )
