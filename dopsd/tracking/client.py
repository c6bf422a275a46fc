"""Send a run's log to the MLflow server from a process of its own.

Training only appends to its log file, and a second process, `dopsd follow`, sends that file. A
slow, dead or missing server therefore neither stops nor slows an update. No step is lost: unsent
steps stay in the file until the next start or `dopsd publish` sends them. No step is sent twice.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from dopsd.core.errors import TEMPORARY, Code, DopsdError
from dopsd.core.extras import require
from dopsd.tracking.config import address_fault

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

DATABASE = "sqlite:///mlflow.db"
SERVICES = Path("work/services/services.json")  # written by `make up`
START = {  # outside a checkout, which has `make up`
    "MLflow": f"mlflow server --backend-store-uri {DATABASE}",
    "Prefect": "prefect server start",
}
MOST_METRICS = 1000  # metrics in a request, the limit of MLflow's API
FINGERPRINT_TAG = "dopsd.fingerprint"
# Query of a page in MLflow's UI. Else it opens in GenAI mode, whose menu lacks runs and models.
TRAINING_MODE = "workflowType=machine_learning"
# Set before mlflow is imported: fail fast without a server, send no telemetry, print nothing.
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
    """The MLflow run of a training run: found by its fingerprint, created with these values."""

    uri: str  # of the tracking server
    experiment: str
    name: str
    fingerprint: str
    tags: dict[str, str]
    params: dict[str, str]


def tracking_uri(configured: str | None) -> str:
    """Return the address of the tracking server.

    That is MLFLOW_TRACKING_URI, else the configured one, else an sqlite file in the project root.
    """
    path = Path.cwd() / "mlflow.db"
    # an address cannot name such a path: MLflow makes the folder of the text before it decodes it,
    # and not all versions of SQLAlchemy decode it
    is_odd = not {"%", "?"}.isdisjoint(str(path))
    own = DATABASE if is_odd else f"sqlite:///{path}"
    return os.environ.get("MLFLOW_TRACKING_URI") or configured or own


def local_port(service: str, default_port: int) -> int:
    """Return the port of a service that `make up` started in this folder, or the default port."""
    return int(started_here().get(service, {}).get("port", default_port))


def started_here() -> dict[str, dict[str, Any]]:
    """Return the services that `make up` started or joined in this folder, by name."""
    return json.loads(SERVICES.read_text(encoding="utf-8")) if SERVICES.is_file() else {}


def local_address(service: str) -> str:
    """Return the address of a server that `make up` started or joined here; empty: none."""
    if entry := started_here().get(service):
        return f"http://{entry.get('host', '127.0.0.1')}:{int(entry['port'])}"
    return str(started_here().get("worker", {}).get(service, ""))


def start_command(server: str) -> str:
    """Return the command that starts a server here."""
    return "make up" if Path("infra/local").is_dir() else START[server]


def shown(uri: str) -> str:
    """Return an address without user and password, for logs and pages."""
    parts = urlsplit(uri)
    return (
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if "@" in parts.netloc
        else uri
    )


def connect(uri: str) -> MlflowClient:
    """Return a client whose store is ready.

    A lock lets one process at a time create a local database: two at once break its migration.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    if not uri.startswith("sqlite:///"):
        return MlflowClient(uri)
    from sqlalchemy import make_url  # MLflow brings it

    database = Path(make_url(uri).database or "mlflow.db")
    if not database.parent.is_dir():
        raise Code.TRACKING_SERVER.error(
            f"tracking: {shown(uri)}: there is no folder {database.parent}; make it, or correct"
            " tracking.uri or MLFLOW_TRACKING_URI"
        )
    with Path(f"{database}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        client.search_registered_models(max_results=1)
    return client


@contextmanager
def _sync_lock(scratch: Path) -> Iterator[None]:
    """Hold a run's lock, so that two processes do not send the same steps."""
    with (scratch / "tracking.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def experiment_id(client: MlflowClient, identity: Identity) -> str:
    """Return the experiment's id; create the experiment if it is missing.

    With a local database the artifacts go to mlartifacts/ beside it, else where the server puts
    them.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(identity.experiment)
    if experiment and experiment.lifecycle_stage == "deleted":
        raise Code.TRACKING_REFUSED.error(
            f"tracking: the experiment {identity.experiment} is deleted in {shown(identity.uri)};"
            f" run `MLFLOW_TRACKING_URI={shown(identity.uri)} mlflow experiments restore -x"
            f" {experiment.experiment_id}`, or name another in tracking.experiment"
        )
    if experiment:
        return experiment.experiment_id
    database = identity.uri.removeprefix("sqlite:///")
    beside = (Path(database).parent / "mlartifacts").resolve().as_uri()
    artifacts = beside if database != identity.uri else None
    try:
        return client.create_experiment(identity.experiment, artifact_location=artifacts)
    except MlflowException:
        if made := client.get_experiment_by_name(identity.experiment):  # by another process
            return made.experiment_id
        raise


def find_run(client: MlflowClient, identity: Identity) -> str:
    """Return the id of a training run's MLflow run; create the run if it is missing."""
    experiment = experiment_id(client, identity)
    from mlflow.entities import Param

    query = f"tags.`{FINGERPRINT_TAG}` = '{identity.fingerprint}'"
    runs = client.search_runs([experiment], query, max_results=1)
    tags = identity.tags | {FINGERPRINT_TAG: identity.fingerprint}
    run = runs[0] if runs else client.create_run(experiment, tags=tags, run_name=identity.name)
    if not run.data.params:  # new, or created by a process that was killed before this line
        client.log_batch(
            run.info.run_id, params=[Param(k, v[:500]) for k, v in identity.params.items()]
        )
    return str(run.info.run_id)


def sent_until(client: MlflowClient, run_id: str) -> int:
    """Return the last update whose metrics the server has; 0 if there is none.

    The metrics of an update are sent in one transaction, so looking at one of them is enough.
    """
    return max((point.step for point in client.get_metric_history(run_id, "train/loss")), default=0)


def send(client: MlflowClient, run_id: str, rows: list[dict[str, Any]]) -> None:
    """Send the metrics of log rows: each row in one transaction, as many rows a request as fit."""
    from mlflow.entities import Metric

    batch: list[Metric] = []
    for row in rows:
        now, step = int(time.time() * 1000), int(row["update"])
        values = {f"train/{name}": float(row[name]) for name in row if name != "update"}
        points = [Metric(name, value, now, step) for name, value in with_percent(values).items()]
        if len(batch) + len(points) > MOST_METRICS:
            client.log_batch(run_id, metrics=batch)
            batch = []
        batch += points
    if batch:
        client.log_batch(run_id, metrics=batch)


def tag_measured(client: MlflowClient, run_id: str, values: dict[str, str]) -> None:
    """Tag a run with what measured its scores, such as `measured_on.device`.

    A run that was measured again has the tags of the last time.
    """
    for name, value in values.items():
        client.set_tag(run_id, f"measured_on.{name}", value)


def whole_rows(log_file: Path) -> list[dict[str, Any]]:
    """Return the complete rows of a log, without a line that is still being written."""
    if not log_file.exists():
        return []
    lines = [
        line
        for line in log_file.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return [json.loads(line) for line in lines]


def sync(
    client: MlflowClient, identity: Identity, rows: list[dict[str, Any]], lock_folder: Path
) -> str:
    """Send the rows that the server lacks, and return the run's id."""
    lock_folder.mkdir(parents=True, exist_ok=True)
    with _sync_lock(lock_folder):
        run_id = find_run(client, identity)
        last_update = sent_until(client, run_id)
        send(client, run_id, [row for row in rows if row["update"] > last_update])
    return run_id


class Point(NamedTuple):
    """A value of a metric."""

    metric: str
    value: float
    step: int
    model_id: str | None = None  # of the LoggedModel that it belongs to, if any


def log_missing(client: MlflowClient, run_id: str, points: Sequence[Point]) -> None:
    """Log the points that the server lacks, or whose last value at the step differs.

    A different value at the same step comes from a new evaluation and is added. Each metric's
    history is asked for once: a run may have a thousand checkpoints.
    """
    from mlflow.entities import Metric

    known: dict[tuple[str, int], float] = {}
    for name in dict.fromkeys(point.metric for point in points):
        history = client.get_metric_history(run_id, name)
        for logged in sorted(history, key=lambda logged: logged.timestamp):
            known[name, logged.step] = logged.value
    now = int(time.time() * 1000)
    missing = [
        Metric(point.metric, float(point.value), now, point.step, model_id=point.model_id)
        for point in points
        if known.get((point.metric, point.step)) != float(point.value)
    ]
    for first in range(0, len(missing), MOST_METRICS):
        client.log_batch(run_id, metrics=missing[first : first + MOST_METRICS])


def log_once(client: MlflowClient, run_id: str, metrics: dict[str, float], step: int) -> None:
    """Log the metrics whose last value at this step is missing or differs."""
    log_missing(client, run_id, [Point(name, value, step) for name, value in metrics.items()])


SUFFIX = "_percent"
SHOWN_IN_PERCENT = (
    "best/test_accuracy",
    "best/test_difference",
    "eval/accuracy",
    "train/first_attempt_score",
)


def percent_name(metric: str) -> str:
    """Return the name of the metric that has a share in percent."""
    return metric + SUFFIX


def with_percent(metrics: dict[str, float]) -> dict[str, float]:
    """Return metrics, and those of SHOWN_IN_PERCENT in percent as well."""
    return metrics | {
        percent_name(name): 100 * value
        for name, value in metrics.items()
        if name in SHOWN_IN_PERCENT
    }


PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
# in errors about answers of other servers
FOREIGN = ("'detail': 'Not Found'", "not in a valid JSON format")


@contextmanager
def one_line(uri: str, command: str = "publish") -> Iterator[None]:
    """Turn errors of mlflow in this context into one line."""
    require(command, "mlflow")
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    if fault := address_fault(uri):
        raise _refused(command, uri.rpartition("@")[2][:200], fault)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise  # of a local database: a mistake that stays
    except (MlflowException, OSError, SQLAlchemyError, ImportError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = "no space is left for the artifacts of" if is_full else "no expected answer from"
        message, advice = " ".join(str(error).split())[:160], "" if is_full else _start()
        is_away = isinstance(error, OperationalError)  # of a database
        if _stays(error) or (isinstance(error, (SQLAlchemyError, ImportError)) and not is_away):
            raise _refused(command, shown(uri), message) from error
        raise DopsdError(
            f"{command}: {failure} {shown(uri)} ({message}). All results are on disk: publish again"
            f" later.{advice}",
            TEMPORARY,
            code=Code.DISK_FULL if is_full else Code.TRACKING_SERVER,
        ) from error


def _stays(error: Exception) -> bool:
    """Tell whether a server would answer so again: it refused, or is another server than MLflow."""
    status = getattr(error, "get_http_status_code", lambda: 0)()
    is_refused = status // 100 == 4 and status not in PASSING  # noqa: PLR2004
    return (is_refused and getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS") or any(
        text in str(error) for text in FOREIGN
    )


def _refused(command: str, place: str, reason: str) -> DopsdError:
    return Code.TRACKING_REFUSED.error(
        f"{command}: {place}: {reason}; MLFLOW_TRACKING_URI or tracking.uri names the server"
    )


def _start() -> str:
    start = start_command("MLflow")
    sourced = ", then `source work/services/env`" if start == "make up" else ""
    return f" Or start a server with `{start}`{sourced}."


def bad_request(message: str) -> MlflowException:
    """Return the error that MLflow's model server answers with status 400 and this message."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

    return MlflowException(message, error_code=BAD_REQUEST)
