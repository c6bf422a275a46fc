"""`dopsd train`: train until the run ends, then write its outputs; the same for every algorithm.

Checkpoints and log are in work/train-<fingerprint>-<end>/. The outputs of a finished run go to
runs/<task>/<method>/<seed>/train/.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from dopsd.core.errors import TEMPORARY, Code, StopRequested
from dopsd.core.interrupts import Interrupts
from dopsd.core.paths import RunKey
from dopsd.core.progress import Progress, log
from dopsd.distributed.process_group import all_processes, by_first, is_lost, lost
from dopsd.training.machine import device_and_threads, write_machine
from dopsd.training.remote_checkpoints import RemoteCopies, fetch_checkpoints
from dopsd.training.resume import is_finished, prepare_folder, write_stage_outputs
from dopsd.training.run_identity import RunIdentity
from dopsd.training.start import checked_start
from dopsd.training.trackers import mirrored, send_row
from dopsd.training.trainer import Trainer
from dopsd.training.training_folder import TrainingFolder


def train(
    identity: RunIdentity,
    tracked_by: Path | None,
    other_code: str = "stop",
    remote: str | None = None,
    also: tuple[str, Sequence[str]] = ("dopsd", ()),
) -> None:
    """Train until the run ends, then copy its adapters and log to the stage's outputs.

    A run that was interrupted continues from its newest checkpoint.

    Args:
        tracked_by: the params.yaml for a second process that sends the log to MLflow; None: no
            tracking.
        other_code: what to do with a run that other code began: stop, continue or anew.
        remote: where checkpoints are copied to, and fetched from if another machine is further.
        also: name of the project at further trackers, and these.
    """
    run, scratch = identity.run, identity.folder
    checked_start(run)
    accelerator = all_processes(run.launch.timeout)
    with ExitStack() as stack, explain_lost_rank(scratch):
        folder = stack.enter_context(TrainingFolder(scratch, accelerator))
        by_first(accelerator, lambda: fetch_checkpoints(remote, scratch))
        by_first(accelerator, lambda: prepare_folder(identity, other_code))
        if not is_finished(scratch, run.train):
            trainer = Trainer(run, accelerator)
            folder.resume(trainer.load_state, trainer.settings.checkpoint_every)
            check_processes(trainer, scratch)
            if tracked_by is not None and accelerator.is_main_process:
                stack.enter_context(log_uploader(run.key, scratch, tracked_by))
            copies = RemoteCopies(remote if accelerator.is_main_process else None, scratch)
            folder.copies = stack.enter_context(copies)
            stack.enter_context(mirrored(accelerator, also[1], also[0], run.key, scratch))
            run_updates(trainer, folder)
    if accelerator.is_main_process:
        write_stage_outputs(identity)


def run_updates(trainer: Trainer, folder: TrainingFolder) -> None:
    """Collect, learn, log and save until the run ends.

    Raises:
        DopsdError: after a signal, and the last finished update is saved.
    """
    settings = trainer.settings
    with (
        Progress("train", settings.updates, "update", str(folder.scratch)) as progress,
        saved_when_interrupted(trainer, folder),
    ):
        progress.resume_at(trainer.update)
        while not trainer.is_over:
            trainer.begin()
            if not trainer.waiting:
                trainer.collect()
            updates, note = 0, "nothing to learn from"
            if trainer.waiting:
                metrics = trainer.accumulate()
                row = trainer.step(metrics)
                folder.rows.add(row)
                send_row(trainer.accelerator, row, trainer.update)
                updates, note = 1, trainer.describe(row)
            if trainer.is_over or (updates and trainer.update % settings.checkpoint_every == 0):
                folder.save(trainer.state(), trainer.policy.save)
            progress.step(updates, note)


@contextmanager
def saved_when_interrupted(trainer: Trainer, folder: TrainingFolder) -> Iterator[None]:
    """Stop at signals while this context lasts, and save the last finished update then.

    Raises:
        DopsdError: after a signal.
    """
    with Interrupts() as interrupts:
        trainer.policy.forwards.should_stop = interrupts.is_caught
        try:
            yield
        except StopRequested as stop:
            if not stop.is_agreed:
                trainer.group.announce_stop()
            trainer.roll_back()
            if trainer.update:
                log(f"train: interrupted; saving update {trainer.update}")
                folder.save(trainer.state(), trainer.policy.save)
            raise interrupts.error(folder.scratch, trainer.update) from None


def check_processes(trainer: Trainer, scratch: Path) -> None:
    """Check that all processes continue from one update, and record where they compute."""
    group = trainer.policy.process_group
    updates = set(group.all_gather_object([trainer.update]))
    if len(updates) > 1:
        raise Code.CHECKPOINTS_DIFFER.error(
            f"train: {scratch}: processes see checkpoints of different updates {sorted(updates)};"
            " run the same command again",
            TEMPORARY,
        )
    devices = group.all_gather_object([device_and_threads(trainer.policy.device)])
    if not trainer.is_over:
        write_machine(scratch, trainer.accelerator, trainer.update, devices)


@contextmanager
def explain_lost_rank(scratch: Path) -> Iterator[None]:
    """Turn an exchange that fails because another process is lost into one line."""
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
