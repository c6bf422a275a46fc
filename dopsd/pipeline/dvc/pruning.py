"""Remove the checkpoints of a tested run that `checkpoints.keep` does not keep.

DVC tracks none but the selected one, so nothing runs again. MLflow keeps what was published before.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import BETWEEN
from dopsd.core.files import WORK, object_in
from dopsd.core.paths import RunKey
from dopsd.core.progress import log
from dopsd.models.adapter_files import MANIFEST

if TYPE_CHECKING:
    from dopsd.config.params import Params


def remove_unwanted(params: Params, key: RunKey) -> None:
    """Remove checkpoints of a tested run from runs/, and from work/ if no other run uses them.

    Runs that were trained or selected again since their test stay whole, and so do variants of
    ablations.
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
