"""`dopsd follow`: send a run's log to its MLflow run, which has its settings, name and tags."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from pathlib import Path

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.extras import require
from dopsd.core.palette import run_colour
from dopsd.core.progress import log
from dopsd.tracking import dashboard
from dopsd.tracking.client import Identity, connect, shown, sync, tracking_uri, whole_rows
from dopsd.tracking.config import TrackingConfig
from dopsd.tracking.dashboard import COLOUR_TAG
from dopsd.tracking.model_card import variant
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import PHASES, RunSettings

FOLLOW_EVERY = 5.0  # seconds between two looks at the log


def run_log_uploader(run: RunSettings, tracking: TrackingConfig) -> None:
    """Send a run's log until standard input closes.

    Training starts this process, and closes its standard input at the end.
    """
    require("follow", "mlflow")

    def is_over(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    last = run.train.updates if run.key.method in PHASES else None
    upload_log(mlflow_identity(run, tracking), identify(run).folder, is_over, last)


def upload_log(
    identity: Identity, scratch: Path, is_over: Callable[[float], bool], last: int | None = None
) -> None:
    """Send the log while it grows, until training has ended.

    The view of the task is saved with the first metrics and at the end. A failing server is logged
    once. The rows stay on disk and are sent later.

    Args:
        scratch: the run's folder with log.jsonl.
        is_over: waits for the given seconds and returns whether training has ended.
        last: the update after which nothing follows, as a test would; None: something does.
    """
    warned, has_view, client = False, False, connect(identity.uri)
    while True:
        is_last = is_over(FOLLOW_EVERY)
        try:
            rows = whole_rows(scratch / "log.jsonl")
            run_id = sync(client, identity, rows, scratch)
            if is_last and rows and rows[-1]["update"] == last:
                client.set_terminated(run_id, "FINISHED")
            if rows and (is_last or not has_view):
                run = client.get_run(run_id)
                dashboard.save(client, run.info.experiment_id, run.data.tags["task"])
                has_view = True
        except Exception as error:  # whatever a server does: keep the log, retry, warn once
            if not warned:
                log(
                    f"tracking: {shown(identity.uri)} does not accept metrics"
                    f" ({type(error).__name__}: {error}); all metrics stay on disk"
                )
            warned = True
        if is_last:
            return


def mlflow_identity(run: RunSettings, tracking: TrackingConfig) -> Identity:
    """Return the MLflow run of a training run; tags and parameters are named alike for all."""
    key, train = run.key, run.train.model_dump()
    sections = {
        "sampling": run.sampling.model_dump(),
        "train": train,
        "model": run.model.model_dump(),
        "method": run.algorithm.model_dump(),
    }
    values = {
        f"{s}.{k}": v for s, section in sections.items() for k, v in section.items() if k != "lora"
    }
    values |= {f"lora.{k}": v for k, v in (train["lora"] if run.train.adapter else {}).items()}
    identified = identify(run)
    names = {"task": key.task, "method.name": key.method, "seed": str(key.seed)}
    tags = {"task": key.task, "method": key.method, "seed": str(key.seed)}
    tags |= {"variant": name} if (name := variant(run)) else {}
    return Identity(
        tracking_uri(tracking.uri),
        tracking.experiment,
        key.stage,
        f"{identified.folder.name}-{identified.first_code}",
        tags
        | {"model": run.model.path, "source": "trained"}
        | {COLOUR_TAG: run_colour(ALGORITHMS, key.method, key.seed)},
        names | {k: str(v) for k, v in values.items()},
    )
