"""`dopsd train`: train until the run is over, and publish it; the same for every algorithm.

Work goes to work/train-<fingerprint>/; the finished run is copied to
runs/<task>/<method>/<seed>/train/.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dopsd.core.errors import TEMPORARY, DopsdError, StopRequested
from dopsd.core.interrupts import Interrupts
from dopsd.core.progress import Progress, log
from dopsd.distributed.accelerate_group import all_processes, by_first
from dopsd.training.resuming import is_finished
from dopsd.training.run_dir import RunFolder
from dopsd.training.run_outputs import publish_run
from dopsd.training.run_settings import scratch_folder
from dopsd.training.run_start import make_ready
from dopsd.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dopsd.core.paths import RunKey
    from dopsd.training.run_settings import RunSettings


def train(
    run: RunSettings,
    tracked_by: Path | None,
    other_code: str = "stop",
    adopted: Path | None = None,
) -> None:
    """Train until the run is over, and put its checkpoints and log into its folder.

    Args:
        run: the run and its settings.
        tracked_by: the params.yaml of the process beside this one that sends the log to MLflow;
            None: there is no such process.
        other_code: what to do where the run was begun by other code: stop, continue or anew.
        adopted: a folder of an older release that is this run's.
    """
    accelerator, scratch = all_processes(), scratch_folder(run)
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(scratch, accelerator))
        by_first(accelerator, lambda: make_ready(run, other_code, adopted))
        if not is_finished(scratch, run.train):
            trainer = Trainer(run, accelerator)
            folder.resume(trainer)
            updates = set(trainer.policy.process_group.all_gather_object([trainer.update]))
            if len(updates) > 1:
                raise DopsdError(
                    f"train: {scratch}: processes see other checkpoints: {sorted(updates)}; run"
                    " again",
                    TEMPORARY,
                )
            if tracked_by is not None and accelerator.is_main_process:
                stack.enter_context(log_uploader(run.key, scratch, tracked_by))
            advance_to_the_end(trainer, folder)
    if accelerator.is_main_process:
        publish_run(scratch, run.key.folder / "train", run.train.checkpoint_every)


def advance_to_the_end(trainer: Trainer, folder: RunFolder) -> None:
    """Train until the run is over. Raises DopsdError after a signal, when the last finished update
    is saved.
    """
    settings = trainer.settings
    with (
        Interrupts() as interrupts,
        Progress("train", settings.updates, "update", str(folder.scratch)) as progress,
    ):
        trainer.policy.forwards.should_stop = interrupts.is_caught
        progress.resume_at(trainer.update)
        try:
            while not trainer.is_over:
                previous_update = trainer.update
                note = trainer.advance(folder)
                if trainer.is_over or (
                    trainer.update > previous_update
                    and trainer.update % settings.checkpoint_every == 0
                ):
                    folder.save(trainer)
                progress.step(trainer.update - previous_update, note)
        except StopRequested as stop:
            if not stop.is_agreed:
                trainer.group.announce_stop()
            trainer.roll_back()
            if trainer.update:
                folder.save(trainer)
            raise interrupts.error(folder.scratch, trainer.update) from None


@contextmanager
def log_uploader(key: RunKey, scratch: Path, params_file: Path) -> Iterator[None]:
    """While this context lasts, a process beside this one copies the log to the tracking server."""
    if find_spec("mlflow") is None:
        log(
            "tracking: mlflow is not installed, so nothing is tracked; the run's log stays in its"
            " folder"
        )
        yield
        return
    command = [sys.executable, "-m", "dopsd", "follow", *key.words, "--params", str(params_file)]
    with (scratch / "tracking.log").open("a") as output:
        uploader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield
    finally:
        if uploader.stdin:
            uploader.stdin.close()  # it sends what is left and ends; training does not wait for it
