"""Space that runs take on a disk, from shapes: checkpoints and their copies."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import kind_of
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import WORK, read_json
from dopsd.core.paths import RUNS
from dopsd.pipeline.shape import Shape, lora_parameters, size_of, trains_all
from dopsd.training.checkpoint import KEPT_RESUMABLE
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings

if TYPE_CHECKING:
    from dopsd.config.params import Params

SELECTED = 2  # copies of the selected checkpoint: in runs/ and in DVC's cache
NUMBER = 4  # bytes of a weight in a checkpoint, and of each of its two moments


def checkpoint_bytes(params: Params, shape: Shape) -> int:
    """Return the bytes of the weights in a checkpoint of the matrix's first method."""
    return NUMBER * (shape.parameters if trains_all(params) else shape.lora_parameters)


def places(params: Params) -> list[str]:
    """Return where each checkpoint is; MLflow has those of adapters.

    It is one file in all of them where the disk has hard links.
    """
    has_mlflow = params.tracking.enabled and not trains_all(params)
    return ["work/", "runs/", *(["MLflow"] if has_mlflow else [])]


def _saved(params: Params) -> int:
    """Return the number of checkpoints that a run makes."""
    return -(-params.train.updates // params.train.checkpoint_every)


def kept(params: Params) -> int:
    """Return the number of checkpoints of a finished run, by `checkpoints.keep`."""
    keep = params.checkpoints.keep
    return min(_saved(params), _newest(params) + (keep != "all"))


def _newest(params: Params) -> int:
    """Return how many of the newest checkpoints of a finished run stay, by `checkpoints.keep`."""
    keep = params.checkpoints.keep
    return (
        _saved(params)
        if keep == "all"
        else min(_saved(params), keep if isinstance(keep, int) else 1)
    )


def has_links(folder: Path) -> bool:
    """Tell whether the disk of a folder has hard links, and the folder can be written."""
    with suppress(OSError), tempfile.TemporaryDirectory(dir=folder) as tmp:
        (Path(tmp) / "a").touch()
        (Path(tmp) / "b").hardlink_to(Path(tmp) / "a")
        return True
    return False


def disks() -> list[Path]:
    """Return a folder on each disk that gets checkpoints; that of the project is the first."""
    folders = [Path.cwd(), WORK, RUNS, Path("mlartifacts")]
    there = [next(p for p in (f.absolute(), *f.absolute().parents) if p.exists()) for f in folders]
    return [*{folder.stat().st_dev: folder for folder in reversed(there)}.values()][::-1]


def free_bytes() -> int:
    """Return the bytes that are free on the fullest disk that gets checkpoints."""
    return min(shutil.disk_usage(folder).free for folder in disks())


def run_bytes(params: Params, shape: Shape, is_training: bool = False) -> int:
    """Return the bytes that a run of the matrix's first method takes on each disk with checkpoints.

    Its answers are not counted.

    The newest checkpoints also hold what resuming needs: moments, and perhaps a moving average.

    Args:
        is_training: During the run, when all checkpoints are there; else of a finished run.
    """
    count = _saved(params) if is_training else kept(params)
    copies = 1 if has_links(Path.cwd()) else len(places(params))
    config = vars(params.method)[kind_of(params.matrix.methods[0])]
    resuming = 3 if vars(config).get("teacher") == "ema" else 2
    newest = _saved(params) if is_training else _newest(params)
    numbers = copies * count + SELECTED + resuming * min(newest, KEPT_RESUMABLE)
    return checkpoint_bytes(params, shape) * numbers


def disk_line(params: Params, shape: Shape) -> str:
    """Return a line that says what a run takes, for an estimate."""
    *others, last = places(params)
    where = f"{', '.join(others)} and {last}"
    count = len(disks())
    one = f"one file on each of {count} disks for " if count > 1 else "one file for "
    one = one if has_links(Path.cwd()) else "copies in "
    text = (
        f"disk of each run: about {run_bytes(params, shape) / 1e9:.1f} GB: {kept(params)}"
        f" checkpoints of {checkpoint_bytes(params, shape) / 1e9:.2f} GB ({one}{where}), two"
        " copies of the best, and what resuming needs"
    )
    if params.checkpoints.keep == "all":
        return text
    return f"{text}; {run_bytes(params, shape, is_training=True) / 1e9:.1f} GB while it trains"


def missing_runs(params: Params) -> list[RunSettings]:
    """Return the runs of the matrix that were not trained to their end with these settings."""
    return [run for run in params.runs if not _is_trained(run)]


def _is_trained(run: RunSettings) -> bool:
    with suppress(DopsdError):  # not trained, or without the data
        return identify(run).has_made(read_json(run.key.folder / "train.json", "dopsd train"))
    return False


def bytes_of(params: Params, run: RunSettings, is_training: bool = False) -> int:
    """Return the bytes of one run of the matrix.

    Args:
        is_training: During the run; else of the finished run.
    """
    cell = {"tasks": [run.key.task], "methods": [run.key.method]}
    matrix = params.matrix.model_copy(update=cell)
    own = params.model_copy(update={"matrix": matrix}).of(run.key.method)
    config = size_of(run.model)
    return run_bytes(own, Shape(config, lora_parameters(config, own)), is_training)


def matrix_bytes(params: Params, runs: list[RunSettings], at_once: int = 1) -> int:
    """Return the most bytes that runs of the matrix take until their end, so many at a time."""
    finished = [bytes_of(params, run) for run in runs]
    training = [bytes_of(params, run, is_training=True) for run in runs]
    more = [most - least for most, least in zip(training, finished, strict=True)]
    return sum(finished) + sum(sorted(more)[-at_once:])


def missing_bytes(params: Params, at_once: int = 1) -> int:
    """Return the bytes that the missing runs of the matrix still need, so many at a time."""
    runs = missing_runs(params)
    written = sum(_written(run) for run in runs)
    return max(0, matrix_bytes(params, runs, at_once) - written)


def _written(run: RunSettings) -> int:
    """Return the bytes that a run in progress has written already."""
    with suppress(DopsdError, OSError):
        return sum(path.stat().st_size for path in identify(run).folder.rglob("*"))
    return 0


def require_room(params: Params, at_once: int = 1) -> None:
    """Refuse a matrix whose missing runs do not fit this disk."""
    try:
        required = missing_bytes(params, at_once)
    except DopsdError:  # the size of a base that is not here is not known
        return
    free = free_bytes()
    if free < required:
        runs = len(missing_runs(params))
        raise Code.DISK_FULL.error(
            f"disk: {free / 1e9:.1f} GB are free, and {runs} missing run{'s' * (runs != 1)} of the"
            f" matrix take{'s' * (runs == 1)} about {required / 1e9:.1f} GB; free some space, set"
            " checkpoints.keep=best_and_last, or make fewer runs"
        )
