"""Where a run starts: the checkpoint that `train.start_from` names.

DVC cannot look up the name of a run in a setting, so data/starts has a link for each run that
starts from a checkpoint, and the stages that train depend on that folder. The link is to the
adapter, or to the index of all weights, which has the digest of each shard.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code, DopsdError
from dopsd.core.paths import RUNS, RunKey
from dopsd.models.adapter_files import ADAPTER, check_shape, has_all_weights, identity
from dopsd.models.checkpoint_files import INDEX

if TYPE_CHECKING:
    from dopsd.training.run_settings import RunSettings

STARTS = Path("data/starts")  # a dependency of DVC's stages `train` and `variant`
RUN = re.compile(rf"(?:{RUNS}/)?([^/]+)/([^/]+)/([0-9]{{1,19}})(/.*)?")


def start_run(run: RunSettings) -> RunKey | None:
    """Return the run that train.start_from names or whose checkpoint it names; None: no run."""
    name = run.train.start_from
    if not name:
        return None
    if "/" not in name:
        return RunKey(run.key.task, name, run.key.seed)
    parts = RUN.fullmatch(Path(name).as_posix())
    if parts is None or (parts[4] and not name.startswith(f"{RUNS}/")):
        return None
    return RunKey(parts[1], parts[2], int(parts[3]))


def named_folder(run: RunSettings) -> Path | None:
    """Return the folder that train.start_from stands for, which may be missing; None: none.

    A run stands for its best checkpoint, as stage `select` copied it.
    """
    name, key = run.train.start_from, start_run(run)
    if key and name and Path(name) in (Path(key.method), Path(str(key)), key.folder):
        return key.folder / "best"
    return Path(name) if name else None


def start_folder(run: RunSettings) -> Path | None:
    """Return the folder of the checkpoint that a run starts from; None: it starts from the base."""
    name, folder = run.train.start_from, named_folder(run)
    if folder is None:
        return None
    if start_run(run) == run.key:
        raise Code.CONTRADICTION.error(
            f"train.start_from: {name}: {run.key} cannot start from its own checkpoints; name"
            " another run"
        )
    if not identity(folder).is_file():
        raise _missing(run, folder)
    if identity(folder).name != start_file(run):
        held = "all weights" if has_all_weights(folder) else "an adapter"
        raise Code.ADAPTER_MISFIT.error(
            f"train.start_from: {name}: holds {held}, and train.weights is {run.train.weights};"
            " write one model with `dopsd export`, and name its folder in model.path"
        )
    return folder


def _missing(run: RunSettings, folder: Path) -> DopsdError:
    """Return the error for a start that is not in its folder."""
    name, other = run.train.start_from, start_run(run)
    if other and folder == other.folder / "best":
        return Code.STAGE_MISSING.error(
            f"train.start_from: {name}: {other.folder} has no best checkpoint; train it first"
            f" (dopsd train {' '.join(other.words)}, then evaluate and select), or name another"
            " start"
        )
    return Code.NO_ADAPTER.error(
        f"train.start_from: {name}: no {start_file(run)} in {folder}; name a checkpoint's folder,"
        " or a run after its stage select: METHOD or TASK/METHOD/SEED"
    )


def checked_start(run: RunSettings) -> Path | None:
    """Return the folder of the checkpoint that a run starts from, as `start_folder` does."""
    folder, lora = start_folder(run), run.train.adapter
    if folder and lora:
        check_shape(folder, lora.r, lora.alpha, lora.targets)
    return folder


def start_file(run: RunSettings) -> str:
    """Return the name of the file that identifies the checkpoint that a run may start from."""
    return ADAPTER if run.train.adapter else INDEX


def link_start(run: RunSettings) -> None:
    """Link what identifies the checkpoint that a run starts from, and nothing else."""
    place, folder = STARTS.joinpath(*map(str, run.key.parts)), start_folder(run)
    STARTS.mkdir(parents=True, exist_ok=True)
    for name in {ADAPTER, INDEX} - ({start_file(run)} if folder else set()):
        (place / name).unlink(missing_ok=True)
    if folder is None:
        return
    link = place / start_file(run)
    link.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(identity(folder), link.parent)
    if not link.is_symlink() or str(link.readlink()) != target:
        tmp = link.with_name(f".{link.name}.tmp")
        tmp.unlink(missing_ok=True)
        tmp.symlink_to(target)
        tmp.replace(link)


def remove_dead_links() -> None:
    """Remove links in data/starts to checkpoints that are gone, at which DVC would fail."""
    for link in [*STARTS.rglob(ADAPTER), *STARTS.rglob(INDEX)]:
        if not link.exists():
            link.unlink()
