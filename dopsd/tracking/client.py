"""MLflow, or silence: a run's log on disk is copied to the tracking server by a process of its own.

Training only appends to its log file. `dopsd follow`, a process beside it, copies that file, so
that a slow, dead or missing server can neither stop nor slow an update, and no step is lost: what
was not sent stays in the file, and the next start, or `dopsd publish`, sends it. Steps that the
server has are never sent twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlflow import MlflowClient

SERVICES = Path("work/services/services.json")  # of `make up`
FOLLOW_EVERY = 5.0  # seconds
MOST_METRICS = 1000  # in a request, by MLflow's API
FINGERPRINT_TAG = "dopsd.fingerprint"
# set before mlflow is imported: answer fast when the server is gone, and send nothing home
QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True)
class Identity:
    """Which MLflow run a training run is: found again by its fingerprint, made with these tags and
    parameters.
    """

    uri: str
    experiment: str
    name: str
    fingerprint: str
    tags: dict[str, str]
    params: dict[str, str]


def tracking_uri(configured: str | None) -> str:
    """MLFLOW_TRACKING_URI, else params.yaml's, else an sqlite file in the project's root; always
    absolute.
    """
    return (
        os.environ.get("MLFLOW_TRACKING_URI")
        or configured
        or f"sqlite:///{Path.cwd() / 'mlflow.db'}"
    )


def local_port(service: str, default_port: int) -> int:
    """Where `make up` of this folder has put a service, else where it usually is."""
    services = json.loads(SERVICES.read_text()) if SERVICES.is_file() else {}
    return int(services.get(service, {}).get("port", default_port))


def shown(uri: str) -> str:
    """Without user and password, for logs and pages."""
    parts = urlsplit(uri)
    return (
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if "@" in parts.netloc
        else uri
    )


def connect(uri: str) -> MlflowClient:
    """A client whose store is ready. A local database is made by one process at a time: two at once
    break its migration.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    if not uri.startswith("sqlite:///"):
        return MlflowClient(uri)
    with Path(uri.removeprefix("sqlite:///") + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        client.search_registered_models(max_results=1)
    return client


@contextmanager
def _sync_lock(scratch: Path) -> Iterator[None]:
    """Two processes must not send the same steps at once."""
    with (scratch / "tracking.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def experiment_id(client: MlflowClient, identity: Identity) -> str:
    """The experiment, made if there is none: with a local file its artifacts go beside it, else
    where the server says.
    """
    experiment = client.get_experiment_by_name(identity.experiment)
    if experiment:
        return experiment.experiment_id
    artifacts = (Path.cwd() / "mlartifacts").as_uri() if identity.uri.startswith("sqlite") else None
    return client.create_experiment(identity.experiment, artifact_location=artifacts)


def find_run(client: MlflowClient, identity: Identity) -> str:
    """The id of this training run's MLflow run, which is created if there is none."""
    experiment = experiment_id(client, identity)
    from mlflow.entities import Param

    query = f"tags.`{FINGERPRINT_TAG}` = '{identity.fingerprint}'"
    runs = client.search_runs([experiment], query, max_results=1)
    tags = identity.tags | {FINGERPRINT_TAG: identity.fingerprint}
    run = runs[0] if runs else client.create_run(experiment, tags=tags, run_name=identity.name)
    if not run.data.params:  # new, or made by a process that was killed before it came to this
        client.log_batch(
            run.info.run_id, params=[Param(k, v[:500]) for k, v in identity.params.items()]
        )
    run_id: str = run.info.run_id
    return run_id


def sent_until(client: MlflowClient, run_id: str) -> int:
    """The last update whose metrics the server has; an update's metrics are sent in one
    transaction.
    """
    return max((point.step for point in client.get_metric_history(run_id, "train/loss")), default=0)


def send(client: MlflowClient, run_id: str, rows: list[dict[str, Any]]) -> None:
    """Every row's metrics in one transaction, several rows in one request where they fit."""
    from mlflow.entities import Metric

    batch: list[Metric] = []
    for row in rows:
        now, step = int(time.time() * 1000), int(row["update"])
        points = [
            Metric(f"train/{name}", float(value), now, step)
            for name, value in row.items()
            if name != "update"
        ]
        if len(batch) + len(points) > MOST_METRICS:
            client.log_batch(run_id, metrics=batch)
            batch = []
        batch += points
    if batch:
        client.log_batch(run_id, metrics=batch)


def log_once(
    client: MlflowClient,
    run_id: str,
    metrics: dict[str, float],
    step: int,
    model_id: str | None = None,
) -> None:
    """Log what the run does not have: another value at the same step is a new evaluation, and is
    added.
    """
    for name, value in metrics.items():
        points = [point for point in client.get_metric_history(run_id, name) if point.step == step]
        if not points or max(points, key=lambda point: point.timestamp).value != float(value):
            client.log_metric(run_id, name, float(value), step=step, model_id=model_id)


def whole_rows(log_file: Path) -> list[dict[str, Any]]:
    """The log's lines; one that is still being written is left for the next look."""
    if not log_file.exists():
        return []
    lines = [line for line in log_file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in lines]


def sync(
    client: MlflowClient, identity: Identity, rows: list[dict[str, Any]], lock_folder: Path
) -> str:
    """Send what the server lacks, once; the run's id."""
    lock_folder.mkdir(parents=True, exist_ok=True)
    with _sync_lock(lock_folder):
        run_id = find_run(client, identity)
        last_update = sent_until(client, run_id)
        send(client, run_id, [row for row in rows if row["update"] > last_update])
    return run_id


def upload_log(identity: Identity, scratch: Path, is_over: Callable[[float], bool]) -> None:
    """Copy the log while it grows, until `is_over(seconds)`, which waits that long, says that
    training has ended.
    """
    warned, client = False, connect(identity.uri)
    while True:
        is_last = is_over(FOLLOW_EVERY)
        try:
            sync(client, identity, whole_rows(scratch / "log.jsonl"), scratch)
        except (
            Exception
        ) as error:  # any fault of a server that is not ours: keep the log, try again, say it once
            if not warned:
                log(
                    f"tracking: {identity.uri} does not take metrics ({type(error).__name__}:"
                    f" {error}); kept on disk"
                )
            warned = True
        if is_last:
            return
