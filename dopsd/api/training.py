"""Train a run from Python as `dopsd train` does, in the current folder."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dopsd.api.settings import load_task
from dopsd.core.errors import Code
from dopsd.core.interrupts import SIGNALS
from dopsd.core.tables import read_table
from dopsd.models.device import own_device
from dopsd.tasks.common.storage import write_splits
from dopsd.training.resume import answer_of
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings
from dopsd.training.train import train as train_to_the_end


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its adapters in the order of their updates, and its log."""

    folder: Path  # runs/<task>/<method>/<seed>
    checkpoints: tuple[Path, ...]  # folders, each an `adapter` for load_policy
    log: list[dict[str, Any]]  # a row an update: loss in nats, scores in [0, 1], counters


def prepare(run: RunSettings) -> None:
    """Write the problems of the run's task to data/<task>/, as `dopsd prepare` does.

    Args:
        run: section `data.<task>` says how many, or from which files.

    Raises:
        DopsdError: if a dataset cannot be read.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded", {"data.sudoku.train": 64})
        >>> dopsd.prepare(run)
    """
    write_splits(load_task(run))


def train(run: RunSettings, other_code: str = "stop") -> TrainedRun:
    """Train until the run is over, and return its checkpoints and log.

    Reads data/<task>/ of the current folder, works in work/ and puts results into runs/. Progress
    goes to standard error. An interrupted run continues where it stopped when the function is
    called again; a finished one returns at once. Only this process trains: `dopsd train` starts
    several where `launch.processes` says so.

    Args:
        other_code: what to do where another version of the code began the run: `stop`, `continue`
            or `anew`.

    Returns:
        The run's folder, its checkpoints and its log.

    Raises:
        DopsdError: if the settings do not fit the data or the model, or training was interrupted;
            what was finished is then saved.

    Example:
        >>> import dopsd
        >>> sizes = {"data.sudoku.train": 64, "train.updates": 2, "train.checkpoint_every": 1}
        >>> run = dopsd.run_settings("embedded", sizes)
        >>> dopsd.prepare(run)
        >>> trained = dopsd.train(run)
        >>> [row["update"] for row in trained.log], trained.checkpoints[-1].name
        ([1, 2], 'step-000002')
    """
    if threading.current_thread() is not threading.main_thread():
        raise Code.PROCESSES.error("train: call it from the main thread, which receives signals")
    answer, device = answer_of(other_code), own_device()
    devices = [device] if device.type == "cuda" else []
    with _handlers_put_back(), torch.random.fork_rng(devices):
        train_to_the_end(identify(run), None, answer)
    folder = run.key.folder
    checkpoints = tuple(sorted((folder / "train").glob("step-*")))
    return TrainedRun(folder, checkpoints, read_table(folder / "train.csv"))


@contextmanager
def _handlers_put_back() -> Iterator[None]:
    """Training that was interrupted leaves its signal handlers; a notebook continues after it."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
