"""`dopsd clean`: remove training folders that no run would continue."""

from __future__ import annotations

import fcntl
import shutil
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import BETWEEN
from dopsd.core.files import ASIDE, WORK, object_in
from dopsd.core.progress import log
from dopsd.models.adapter_files import MANIFEST
from dopsd.training.run_identity import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params
    from dopsd.core.paths import RunKey


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

    Kept are folders of the same run with another number of updates.
    """
    a, runs = params.ablate, params.runs
    if a.task in params.matrix.tasks:
        runs += [params.run(a.task, n, s) for n in params.variants for s in a.seeds]
    kept_folders = {
        folder
        for run in runs
        for folder in WORK.glob(f"{scratch_folder(run).name.rpartition('-')[0]}-*")
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


def remove_unwanted(params: Params, key: RunKey) -> None:
    """Remove checkpoints of a tested run from runs/, and from work/ if no other run uses them.

    Runs that were trained or selected again since their test stay whole, and so do variants of
    ablations.

    Args:
        params: All settings.
        key: The run.
    """
    keep, out = params.checkpoints.keep, key.folder / "train"
    if keep == "all" or BETWEEN in key.method:
        return
    digests, selected = object_in(out / MANIFEST), object_in(key.folder / "best/select.json")
    best = f"step-{selected.get('update', 0):06d}"
    is_tested = object_in(key.folder / "test/paired.json").get("selected") == selected
    if not is_tested or best not in digests or digests[best] != selected["digest"]:
        return
    scratch = WORK / object_in(out.with_suffix(".json"))["fingerprint"]
    is_shared = {*object_in(scratch / "run.json").get("cells", [])} - {str(key)}
    newest = sorted(digests)[-(keep if isinstance(keep, int) else 1) :]
    doomed = [name for name in digests if name not in (best, *newest) and (out / name).is_dir()]
    for name in doomed:
        for folder in (out,) if is_shared else (scratch, out):
            shutil.rmtree(folder / name, ignore_errors=True)
    if doomed:
        log(f"keep: {key}: {len(doomed)} checkpoints removed")
