"""`dopsd clean`: remove training folders that nothing would continue."""

from __future__ import annotations

import shutil

from dopsd.config import Params
from dopsd.layout import Cell, scratch_folder
from dopsd.older import older_folders
from dopsd.progress import WORK, say
from dopsd.resuming import record_of
from dopsd.run_identity import ASIDE


def clean(params: Params) -> None:
    """Remove training folders that no cell of params.yaml's matrix and no variant would continue, and what was set aside.

    Folders of other lengths of a run stay, and those of an older release that may be a cell's which has not begun.
    """
    m, a = params.matrix, params.ablate
    cells = [Cell(t, n, s) for t in m.tasks for n in m.methods for s in m.seeds]
    if a.task in m.tasks:
        cells += [Cell(a.task, n, s) for n in params.variants for s in a.seeds]
    current = {cell: scratch_folder(params, *cell.parts) for cell in cells}
    kept = {folder for own in current.values() for folder in WORK.glob(f"{own.name.rpartition('-')[0]}-*")}
    kept |= {folder for cell, own in current.items() if not record_of(own) for folder in older_folders(params, cell)}
    gone = [folder for folder in sorted([*WORK.glob("train-*"), *ASIDE.glob("*")]) if folder not in kept]
    for folder in gone:
        shutil.rmtree(folder)
    say(f"clean: removed {len(gone)} folders of other settings from {WORK}/, kept {len(kept)} of params.yaml's")
