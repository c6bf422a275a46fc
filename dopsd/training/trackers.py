"""Metrics to further trackers (`tracking.also`), through accelerate's own classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.files import WORK
from dopsd.core.progress import log
from dopsd.distributed.process_group import by_first

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from dopsd.core.paths import RunKey


# of a run of another program or shell, which W&B would take for its own: one run of all seeds
OF_OTHER_RUNS = (
    *("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RUN_DIR", "WANDB_RUN_STORAGE_ID", "WANDB_NAME"),
    *("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_SERVICE", "WANDB_INITED"),
)


@contextmanager
def mirrored(
    accelerator: Accelerator, names: Sequence[str], project: str, key: RunKey, scratch: Path
) -> Iterator[None]:
    """Let `accelerator.log` send metrics to these trackers while this context lasts.

    Args:
        accelerator: the processes of the run; the first one sends.
        names: tensorboard, wandb or trackio.
        project: name of the project at the tracker.
        key: the run, whose name its metrics get.
        scratch: its folder in work/, by whose name TensorBoard tells runs of other settings.
    """
    if missing := [name for name in names if find_spec(name) is None]:
        raise Code.PACKAGE_MISSING.error(
            f"tracking.also: {missing[0]} is not installed; pip install {missing[0]}, or leave it"
            " out"
        )

    def start() -> None:
        accelerator.log_with = [*names]
        folder = WORK / "tensorboard" / f"{key.stage}-{scratch.name}"
        accelerator.project_configuration.logging_dir = str(folder)
        if dropped := [name for name in OF_OTHER_RUNS if os.environ.pop(name, None)]:
            log(f"note: tracking.also: {', '.join(dropped)} of another run: not read")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", "60")  # s, without a network at the end
        options = {"wandb": {"name": str(key), "dir": str(WORK)}, "trackio": {"name": str(key)}}
        try:
            accelerator.init_trackers(project.strip("/").replace("/", "-"), init_kwargs=options)
        except Exception as error:  # each library has errors of its own
            _finish(accelerator, accelerator.trackers, says=False)
            why = " ".join(str(error).split())[:200].rstrip(".")
            raise Code.TRACKING_REFUSED.error(
                f"tracking.also: {', '.join(names)}: {why}; log in,"
                " or set the tracker's offline mode (WANDB_MODE=offline), or leave it out"
            ) from error
        log(f"tracking: metrics go to {', '.join(names)} too, as {key}")

    if names:
        by_first(accelerator, start)
    try:
        yield
    finally:
        _finish(accelerator, accelerator.trackers)


def _finish(
    accelerator: Accelerator, trackers: Sequence[GeneralTracker], says: bool = True
) -> None:
    """Finish trackers; `says` False: one that never started cannot, without a word."""
    for tracker in [*trackers]:
        accelerator.trackers.remove(tracker)
        try:
            tracker.finish()
        except Exception as error:  # what was trained is there, whatever the tracker says
            if says:
                log(f"warning: tracking.also: {' '.join(str(error).split())[:200]}")


def send_row(accelerator: Accelerator, row: dict[str, float], update: int) -> None:
    """Send a row of the log to the trackers; nothing more goes to one that fails."""
    for tracker in [*accelerator.trackers]:
        try:
            tracker.log(row, step=update)
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            log(f"warning: tracking.also: {tracker.name}: {why}; nothing more is sent there")
            _finish(accelerator, [tracker])
