"""`dopsd train`: train until the run ends, then copy its outputs; the same for every algorithm.

Checkpoints and log are in work/train-<fingerprint>-<end>/. The outputs of a finished run go to
runs/<task>/<method>/<seed>/train/.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError, StopRequested
from dopsd.core.interrupts import Interrupts
from dopsd.core.progress import Progress, log
from dopsd.distributed.accelerate_group import all_processes, by_first
from dopsd.distributed.lost import is_lost, lost
from dopsd.training.machine import device_and_threads, record_machine
from dopsd.training.remote_copies import RemoteCopies, fetch
from dopsd.training.resuming import is_finished
from dopsd.training.run_dir import RunFolder
from dopsd.training.run_outputs import publish_run
from dopsd.training.run_settings import scratch_folder
from dopsd.training.run_start import make_ready
from dopsd.training.start import started_from
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
    remote: str | None = None,
) -> None:
    """Train until the run ends, then copy its adapters and log to the stage's outputs.

    A run that was interrupted continues from its newest checkpoint.

    Args:
        run: the run and its settings.
        tracked_by: the params.yaml for a second process that sends the log to MLflow; None: no
            tracking.
        other_code: what to do with a run that other code began: stop, continue or anew.
        remote: where checkpoints are copied to, and fetched from if another machine is further.

    Raises:
        DopsdError: if the run cannot start or continue, or was stopped by a signal.
    """
    accelerator = all_processes(run.launch.timeout)
    scratch, start = scratch_folder(run), started_from(run)
    with ExitStack() as stack, explain_lost_rank(scratch):
        folder = stack.enter_context(RunFolder(scratch, accelerator))
        by_first(accelerator, lambda: fetch(remote, scratch))
        by_first(accelerator, lambda: make_ready(run, other_code))
        if not is_finished(scratch, run.train):
            trainer = Trainer(run, accelerator)
            folder.resume(trainer)
            updates = set(trainer.policy.process_group.all_gather_object([trainer.update]))
            if len(updates) > 1:
                raise DopsdError(
                    f"train: {scratch}: processes see checkpoints of different updates"
                    f" {sorted(updates)}; run the same command again",
                    TEMPORARY,
                    code=Code.CHECKPOINTS_DIFFER,
                )
            name = device_and_threads(trainer.policy.device)
            devices = trainer.policy.process_group.all_gather_object([name])
            if not trainer.is_over:
                record_machine(scratch, accelerator, trainer.update, devices)
            if tracked_by is not None and accelerator.is_main_process:
                stack.enter_context(log_uploader(run.key, scratch, tracked_by))
            copies = RemoteCopies(remote if accelerator.is_main_process else None, scratch)
            folder.copies = stack.enter_context(copies)
            advance_to_the_end(trainer, folder)
    if accelerator.is_main_process:
        publish_run(scratch, run.key.folder / "train", run.train.checkpoint_every, start)


def advance_to_the_end(trainer: Trainer, folder: RunFolder) -> None:
    """Advance the trainer until the run ends, and save its checkpoints.

    Raises:
        DopsdError: after a signal, and the last finished update is saved.
    """
    settings = trainer.settings
    with (
        Interrupts() as interrupts,
        Progress("train", settings.updates, "update", str(folder.scratch)) as progress,
    ):
        trainer.policy.forwards.should_stop = interrupts.is_caught
        progress.resume_at(trainer.update)
        _advance(trainer, folder, interrupts, progress)


def _advance(
    trainer: Trainer, folder: RunFolder, interrupts: Interrupts, progress: Progress
) -> None:
    settings = trainer.settings
    try:
        while not trainer.is_over:
            previous_update = trainer.update
            note = trainer.advance(folder)
            if trainer.is_over or (
                trainer.update > previous_update and trainer.update % settings.checkpoint_every == 0
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
def explain_lost_rank(scratch: Path) -> Iterator[None]:
    """Turn an exchange that fails because another process is lost into one line.

    Args:
        scratch: the folder of the checkpoints.

    Raises:
        DopsdError: if another process ended, or did not answer within launch.timeout.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise lost(scratch, error) from None


@contextmanager
def log_uploader(key: RunKey, scratch: Path, params_file: Path) -> Iterator[None]:
    """Start `dopsd follow`, which sends the log to the tracking server while this context lasts."""
    if find_spec("mlflow") is None:
        log(
            f"tracking: mlflow is not installed, so no metrics are sent; the log stays in {scratch}"
        )
        yield
        return
    command = [sys.executable, "-m", "dopsd", "follow", *key.words, "--params", str(params_file)]
    with (scratch / "tracking.log").open("a", encoding="utf-8") as output:
        uploader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield
    finally:
        if uploader.stdin:
            uploader.stdin.close()  # the uploader sends the rest and ends; training does not wait
