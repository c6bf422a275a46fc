"""`dopsd publish`: MLflow runs, checkpoints and the champion alias, rebuilt from files on disk.

No stage writes to the registry: a result restored from DVC's cache, without running anything, must
be published as well. Everything is looked up by digest or fingerprint first, so that publishing
twice changes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import read_json, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import LOG, PUBLISHED, RunKey, report_folder
from dopsd.core.progress import log
from dopsd.core.tables import read_log, read_table
from dopsd.models.adapter_files import ADAPTER
from dopsd.tracking import dashboard
from dopsd.tracking.client import (
    Identity,
    connect,
    local_port,
    shown,
    sync,
    tracking_uri,
    upload_log,
)
from dopsd.tracking.model_card import Origin, card, commit, data_digests
from dopsd.tracking.model_registry import (
    ACCURACY,
    DIGEST_TAG,
    JUDGED_BY,
    Chosen,
    log_model,
    promote_champion,
    register,
)
from dopsd.training.run_identity import first_code, is_current
from dopsd.training.run_settings import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow import MlflowClient

    from dopsd.core.paths import RunKey
    from dopsd.evaluation.config import EvaluateConfig, SelectConfig
    from dopsd.tracking.config import TrackingConfig
    from dopsd.training.run_settings import RunSettings

PAGE = "DOPSD_MLFLOW_PAGE"
START_OR_NAME = "`make up` starts servers here, then `source work/services/env` names them"


@dataclass(frozen=True)
class Publication:
    """What publishing needs to know: where to, which runs, and how they were evaluated and
    selected.
    """

    tracking: TrackingConfig
    runs: list[RunSettings]
    evaluate: EvaluateConfig
    select: SelectConfig


@dataclass(frozen=True)
class Tracked:
    """A run whose stages have run, and its MLflow run."""

    run: RunSettings
    run_id: str

    @property
    def key(self) -> RunKey:
        return self.run.key


def publish(publication: Publication) -> dict[str, int]:
    """Publish every finished run; return the champion's version by task."""
    if not publication.tracking.enabled:
        raise DopsdError("tracking.enabled is false in params.yaml: set it to true to publish")
    uri = tracking_uri(publication.tracking.uri)
    with one_line(uri):
        client = connect(uri)
        candidates = [_tracked(publication, client, run) for run in publication.runs]
        tracked_runs = [candidate for candidate in candidates if candidate]
        best: dict[str, tuple[float, int]] = {}
        for tracked in tracked_runs:
            version, accuracy = _publish_run(publication, client, tracked)
            best[tracked.key.task] = max(best.get(tracked.key.task, (-1.0, 0)), (accuracy, version))
        champions = {
            task: promote_champion(client, _model_name(publication, task), version)
            for task, (_, version) in best.items()
        }
        pages = _pages(publication, client, uri, tracked_runs)
        write_json(PUBLISHED, pages)
    log(f"publish: {len(tracked_runs)} runs are in {shown(uri)}")
    for task, link in pages["comparison"].items():
        log(f"  {task} side by side: {link}")
    return champions


@contextmanager
def one_line(uri: str) -> Iterator[None]:
    """A missing package or a server that does not answer is one line, not mlflow's traceback."""
    try:
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise DopsdError("publish: mlflow is not installed; pip install mlflow") from error
    try:
        yield
    except (MlflowException, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = "no space is left for the artifacts of" if is_full else "no expected answer from"
        message, advice = (
            " ".join(str(error).split())[:160],
            "" if is_full else f"; {START_OR_NAME}",
        )
        raise DopsdError(
            f"publish: {failure} {shown(uri)} ({message}); all results are on disk, publish again"
            f" later{advice}",
            TEMPORARY,
        ) from error


def _pages(
    publication: Publication, client: MlflowClient, uri: str, tracked_runs: list[Tracked]
) -> dict[str, Any]:
    """What a flow links to: the server's address (none for a local file), each cell's run, each
    task's comparison.

    Workers may know the server by a name that browsers do not: DOPSD_MLFLOW_PAGE is the address
    that people open.
    """
    experiment = client.get_experiment_by_name(publication.tracking.experiment)
    page = os.environ.get(PAGE) or (shown(uri) if uri.startswith("http") else None)
    page = page.rstrip("/") if page else None
    runs = {str(tracked.key): tracked.run_id for tracked in tracked_runs}
    pages: dict[str, Any] = {
        "page": page,
        "experiment": experiment.experiment_id if experiment else None,
        "runs": runs,
    }
    for task in {tracked.key.task for tracked in tracked_runs}:
        dashboard.save(client, pages["experiment"], task)
    return pages | {
        "comparison": {
            c.key.task: dashboard.link(page or local_page(), pages["experiment"], c.key.task)
            for c in tracked_runs
        }
    }


def local_page() -> str:
    """Where `make up` or `make mlflow` shows a local file."""
    return f"http://127.0.0.1:{local_port('mlflow', 5000)}"


def _model_name(publication: Publication, task: str) -> str:
    return f"{publication.tracking.registered_model}-{task}"


def _tracked(publication: Publication, client: MlflowClient, run: RunSettings) -> Tracked | None:
    """Return the run with its MLflow run, its log sent; None if it is not finished or not
    current.
    """
    folder = run.key.folder
    if not (folder / "test" / "paired.json").is_file():
        log(f"publish: {folder} has no test results yet; left out")
        return None
    if not is_current(run, read_json(folder / "train.json", "dopsd train")):
        log(
            f"publish: {folder} was made with other settings, data or code; left out until `dvc"
            " repro` has run"
        )
        return None
    scratch = scratch_folder(run)
    log_file = scratch / LOG
    rows = read_log(log_file) if log_file.is_file() else read_table(folder / "train.csv")
    return Tracked(run, sync(client, identity(run, publication.tracking), rows, scratch))


def _publish_run(
    publication: Publication, client: MlflowClient, tracked: Tracked
) -> tuple[int, float]:
    """Curve, checkpoints, figures and registration of one run; the registered version and its
    selection accuracy.
    """
    chosen = read_json(tracked.key.folder / "best" / "select.json", "dopsd select")
    protocols = read_json(tracked.key.folder / "test" / "paired.json", "dopsd test")["protocols"]
    if client.get_run(tracked.run_id).info.status != "FINISHED":
        _log_tags_and_data(client, tracked)
    models = _log_checkpoints(publication, client, tracked)
    log_once(
        client,
        tracked.run_id,
        _best_metrics(chosen, protocols) | _cost(tracked, chosen["update"]),
        0,
    )
    figures = report_folder(*tracked.key.parts)
    if figures.is_dir():
        client.log_artifacts(tracked.run_id, str(figures), "report")
    client.set_terminated(tracked.run_id, "FINISHED")
    version = _register(publication, client, tracked, chosen, models[chosen["digest"]])
    return version, float(chosen["accuracy"])


def _best_metrics(chosen: dict[str, Any], protocols: dict[str, Any]) -> dict[str, float]:
    """Of the protocol that selected; the test accuracy of every other stands under its name."""
    tested = protocols[chosen["protocol"]]
    low, high = tested["paired"]["interval"]
    return {
        f"best/test_accuracy/{name}": result["best"]["accuracy"]
        for name, result in protocols.items()
    } | {
        "best/update": chosen["update"],
        (
            "best/validation_accuracy"
            if chosen["split"] == "validation"
            else "best/selection_on_test"
        ): chosen["accuracy"],
        "best/test_accuracy": tested["best"]["accuracy"],
        "best/test_base_accuracy": tested["base"]["accuracy"],
        "best/test_difference": tested["paired"]["difference"],
        "best/test_difference_low": low,
        "best/test_difference_high": high,
    }


def _cost(tracked: Tracked, update: int) -> dict[str, float]:
    """What the selected checkpoint had cost."""
    rows = [row for row in read_table(tracked.key.folder / "train.csv") if row["update"] == update]
    return {
        f"best/{key.removeprefix('count/')}": value
        for row in rows
        for key, value in row.items()
        if key.startswith("count/")
    }


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


def _log_tags_and_data(client: MlflowClient, tracked: Tracked) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    for split, digest in data_digests(tracked.key.task).items():
        source = json.dumps({"path": f"data/{tracked.key.task}/{split}.jsonl"})
        data = Dataset(f"{tracked.key.task}-{split}", digest, "local", source)
        client.log_inputs(
            tracked.run_id, [DatasetInput(data, [InputTag("mlflow.data.context", split)])]
        )
    client.set_tag(tracked.run_id, "mlflow.source.git.commit", commit())


def _log_checkpoints(
    publication: Publication, client: MlflowClient, tracked: Tracked
) -> dict[str, str]:
    """Every checkpoint as a LoggedModel with its evaluation; ids by adapter digest."""
    experiment = client.get_run(tracked.run_id).info.experiment_id
    models = client.search_logged_models(
        [experiment], f"source_run_id = '{tracked.run_id}'", max_results=1000
    )
    model_ids = {
        m.tags[DIGEST_TAG]: m.model_id
        for m in models
        if DIGEST_TAG in m.tags and str(m.status) == "READY"
    }
    curve = read_table(tracked.key.folder / "curve.csv")
    curve = [row for row in curve if row["protocol"] == publication.select.protocol]
    for row in curve:
        folder = tracked.key.folder / "train" / f"step-{row['update']:06d}"
        model_id = None
        if folder.is_dir():
            digest = sha256(folder / ADAPTER)
            name = f"{tracked.key.task}-{tracked.key.method}-{tracked.key.seed}-{folder.name}"
            model_id = model_ids.get(digest) or log_model(
                client, experiment, tracked.run_id, name, folder, digest
            )
            model_ids[digest] = model_id
        figures = {
            "eval/accuracy": row["accuracy"],
            "eval/low": row["low"],
            "eval/high": row["high"],
            "eval/whole": row["whole"],
        }
        log_once(client, tracked.run_id, figures, row["update"], model_id)
    return model_ids


def _register(
    publication: Publication,
    client: MlflowClient,
    tracked: Tracked,
    chosen: dict[str, Any],
    model_id: str,
) -> int:
    """The registered version of the selected checkpoint."""
    tags = {
        DIGEST_TAG: chosen["digest"],
        "method": tracked.key.method,
        "seed": str(tracked.key.seed),
        "update": str(chosen["update"]),
    }
    data, protocol = (
        data_digests(tracked.key.task),
        publication.evaluate.protocols[chosen["protocol"]].model_dump(),
    )
    criteria = json.dumps([chosen["split"], data.get(chosen["split"]), protocol], sort_keys=True)
    tags |= {
        ACCURACY: str(chosen["accuracy"]),
        JUDGED_BY: hashlib.sha256(criteria.encode()).hexdigest()[:16],
    }
    commit_hash = (
        client.get_run(tracked.run_id).data.tags.get("mlflow.source.git.commit") or commit()
    )
    text = card(tracked.run, publication.evaluate, Origin(data, commit_hash))
    name, uri = _model_name(publication, tracked.key.task), tracking_uri(publication.tracking.uri)
    return register(client, uri, name, Chosen(tracked.run_id, model_id, tags, text))


def identity(run: RunSettings, tracking: TrackingConfig) -> Identity:
    """Return the MLflow run of a run: the same names of tags and parameters for every algorithm."""
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
    values |= {f"lora.{k}": v for k, v in train["lora"].items()}
    names = {"task": key.task, "method.name": key.method, "seed": str(key.seed)}
    tags = {"task": key.task, "method": key.method, "seed": str(key.seed)}
    return Identity(
        tracking_uri(tracking.uri),
        tracking.experiment,
        key.stage,
        f"{scratch_folder(run).name}-{first_code(run)}",
        tags | {"model": run.model.path, "source": "trained"},
        names | {k: str(v) for k, v in values.items()},
    )


def run_log_uploader(run: RunSettings, tracking: TrackingConfig) -> None:
    """`dopsd follow`, started by training: copies its log until standard input closes, as it does
    when training ends.
    """

    def is_over(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    upload_log(identity(run, tracking), scratch_folder(run), is_over)
