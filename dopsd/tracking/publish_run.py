"""Publish a finished run: curve, checkpoints, figures and registered model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dopsd.core.files import WORK, object_in, read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.metrics import COUNTED
from dopsd.core.paths import LOG, RunKey, report_folder
from dopsd.core.tables import read_log, read_table
from dopsd.evaluation.curve import curve_of
from dopsd.models.adapter_files import identity
from dopsd.models.backends import fields
from dopsd.tracking import model_registry
from dopsd.tracking.client import (
    Point,
    log_missing,
    log_once,
    tag_measured,
    tracking_uri,
    with_percent,
)
from dopsd.tracking.config import TrackingConfig
from dopsd.tracking.flavour import flavour_of
from dopsd.tracking.model_card import CardOrigin, card, data_digests, description, trained_commit
from dopsd.training.machine import MACHINE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from dopsd.evaluation.config import EvaluateConfig, SelectConfig
    from dopsd.training.run_settings import RunSettings

PAGE = 100  # models of an answer of the server


@dataclass(frozen=True)
class Tracked:
    """A finished run and its MLflow run."""

    run: RunSettings
    run_id: str

    @property
    def key(self) -> RunKey:
        """The run's task, method and seed."""
        return self.run.key


def model_name(publication: Publication, task: str) -> str:
    """Return the name of a task's registered model."""
    return f"{publication.tracking.registered_model}-{task}"


def publish_run(
    publication: Publication, client: MlflowClient, tracked: Tracked
) -> tuple[int, float]:
    """Publish a run, and return the registered version and its accuracy on the selection split."""
    chosen = read_json(tracked.key.folder / "best" / "select.json", "dopsd select")
    tested = read_json(tracked.key.folder / "test" / "paired.json", "dopsd test")
    protocols, areas = tested["protocols"], tested.get("area") or {}
    watched = tested.get("watched") or {}
    if client.get_run(tracked.run_id).info.status != "FINISHED":
        _log_tags_and_data(client, tracked)
    models = _log_checkpoints(publication, client, tracked, chosen["update"])
    log_once(
        client,
        tracked.run_id,
        with_percent(_best_metrics(chosen, protocols))
        | {f"best/area/{side}": areas[side] for side in areas if side != "interval"}
        | {f"watch/{name}": one["best"]["accuracy"] for name, one in watched.items()}
        | {f"watch/{name}/difference": one["paired"]["difference"] for name, one in watched.items()}
        | _cost(tracked, chosen["update"])
        | run_cost(tracked.key),
        0,
    )
    figures = report_folder(*tracked.key.parts)
    if figures.is_dir():
        client.log_artifacts(tracked.run_id, str(figures), "report")
    if tracked.key.page.is_file():
        client.log_artifact(tracked.run_id, str(tracked.key.page), "report")
    client.set_tag(tracked.run_id, "protocol", chosen["protocol"])
    tag_measured(client, tracked.run_id, _measured_on(protocols[chosen["protocol"]]))
    client.set_terminated(tracked.run_id, "FINISHED")
    version = _register(publication, client, tracked, chosen, models[chosen["digest"]])
    return version, float(chosen["accuracy"])


def _measured_on(tested: dict[str, Any]) -> dict[str, str]:
    """Return what measured base and selected checkpoint."""
    sides = [tested[side]["measured_on"] for side in ("base", "best")]
    return fields([record for records in sides for record in records])


def _best_metrics(chosen: dict[str, Any], protocols: dict[str, Any]) -> dict[str, float]:
    """Return the selected checkpoint's metrics, and its test accuracy under every protocol."""
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
    """Return the counters of training up to the selected checkpoint, as metrics."""
    rows = [row for row in read_table(tracked.key.folder / "train.csv") if row["update"] == update]
    return {
        f"best/{key.removeprefix('count/')}": value
        for row in rows
        for key, value in row.items()
        if key.startswith("count/")
    }


def _log_tags_and_data(client: MlflowClient, tracked: Tracked) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    for split, digest in data_digests(tracked.key.task).items():
        source = json.dumps({"path": f"data/{tracked.key.task}/{split}.jsonl"})
        data = Dataset(f"{tracked.key.task}-{split}", digest, "local", source)
        client.log_inputs(
            tracked.run_id, [DatasetInput(data, [InputTag("mlflow.data.context", split)])]
        )
    if trained_by := trained_commit(tracked.key):
        client.set_tag(tracked.run_id, "mlflow.source.git.commit", trained_by.removesuffix("+"))


def _log_checkpoints(
    publication: Publication, client: MlflowClient, tracked: Tracked, chosen: int
) -> dict[str, str]:
    """Log every checkpoint of the curve as a LoggedModel with its evaluation; return ids by digest.

    Where DVC brought the results of another machine, the one of update `chosen` is here alone.
    """
    experiment = client.get_run(tracked.run_id).info.experiment_id
    model_ids = _model_ids(client, experiment, tracked.run_id)
    curve = curve_of(tracked.key.folder)
    points: list[Point] = []
    for row in (row for row in curve if row["protocol"] == publication.select.protocol):
        folder = tracked.key.folder / "train" / f"step-{row['update']:06d}"
        name = f"{tracked.key.task}-{tracked.key.method}-{tracked.key.seed}-{folder.name}"
        if row["update"] == chosen and not folder.is_dir():
            folder = tracked.key.folder / "best"
        model_id = None
        if folder.is_dir():
            digest = sha256(identity(folder))
            model_id = model_ids.get(digest) or model_registry.log_model(
                client, experiment, tracked.run_id, name, folder, digest
            )
            model_ids[digest] = model_id
        figures = {f"eval/{name}": row[name] for name in ("accuracy", "low", "high", "whole")}
        points += [
            Point(name, value, row["update"], model_id)
            for name, value in with_percent(figures).items()
        ]
    log_missing(client, tracked.run_id, points)
    return model_ids


def _model_ids(client: MlflowClient, experiment: str, run_id: str) -> dict[str, str]:
    """Return the ids of a run's complete LoggedModels by digest of their weights."""
    models: list[LoggedModel] = []
    token = None
    while True:
        page = client.search_logged_models(
            [experiment], f"source_run_id = '{run_id}'", max_results=PAGE, page_token=token
        )
        models += page
        if not (token := page.token):
            break
    return {
        m.tags[model_registry.DIGEST_TAG]: m.model_id
        for m in models
        if model_registry.DIGEST_TAG in m.tags and str(m.status) == "READY"
    }


def _register(
    publication: Publication,
    client: MlflowClient,
    tracked: Tracked,
    chosen: dict[str, Any],
    model_id: str,
) -> int:
    """Register the selected checkpoint with its card, and return the version."""
    tags = {
        model_registry.DIGEST_TAG: chosen["digest"],
        "method": tracked.key.method,
        "seed": str(tracked.key.seed),
        "update": str(chosen["update"]),
    }
    data, protocol = (
        data_digests(tracked.key.task),
        publication.evaluate.protocols[chosen["protocol"]].decisive(),
    )
    criteria = json.dumps([chosen["split"], data.get(chosen["split"]), protocol], sort_keys=True)
    tags |= {
        model_registry.ACCURACY: str(chosen["accuracy"]),
        model_registry.JUDGED_BY: hashlib.sha256(criteria.encode()).hexdigest()[:16],
    }
    origin = CardOrigin(data, trained_commit(tracked.key), f"models:/{model_id}")
    text = card(tracked.run, publication.evaluate, origin)
    name, uri = model_name(publication, tracked.key.task), tracking_uri(publication.tracking.uri)
    flavour, tags[model_registry.FLAVOUR_TAG] = flavour_of(
        tracked.run, publication.evaluate, publication.select, model_id
    )
    chosen_model = model_registry.Chosen(tracked.run_id, model_id, tags, text, flavour)
    version = model_registry.register(client, uri, name, chosen_model)
    if not client.get_registered_model(name).description:  # a user's own text stays
        text = description(name, tracked.key.task, tracked.run.model.path)
        client.update_registered_model(name, text)
    return version


HOUR = 3600.0  # seconds


def run_cost(key: RunKey) -> dict[str, float]:
    """Return the cost of a finished run as metrics of MLflow.

    Hours are of the updates of all processes that trained the run, one after the other: a resumed
    run has them all in its log. They are unknown of a run from DVC's cache.
    """
    totals = read_json(key.folder / "train.json", "dopsd train")
    scratch = WORK / totals["fingerprint"]
    rows = read_log(scratch / LOG) if (scratch / LOG).is_file() else []
    parts = object_in(scratch / MACHINE).get("parts", [])
    counts = {f"cost/{name}": float(totals[name]) for name in COUNTED if name in totals}
    return counts | device_hours(rows, parts)


def device_hours(
    rows: Sequence[dict[str, float]], parts: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Return GPU-hours of updates that GPUs made, and CPU-hours of those that processors made.

    Args:
        rows: the log: a row for each update.
        parts: the record of machines; each begins after its `after_update`, and names the device of
            each process.

    Returns:
        GPU-hours: wall time times GPUs. CPU-hours: time of the first process' threads, times the
        processes. Either is absent without such updates, both without a record.
    """
    hours: dict[str, float] = {}
    for row in rows:
        devices = [part["devices"] for part in parts if part["after_update"] < row["update"]]
        if not devices:
            continue
        is_cpu = "(CPU" in devices[-1][0]
        seconds = row.get("time/cpu_seconds", 0.0) if is_cpu else row["time/update_seconds"]
        name = "cost/cpu_hours" if is_cpu else "cost/gpu_hours"
        hours[name] = hours.get(name, 0.0) + seconds * len(devices[-1]) / HOUR
    return hours


@dataclass(frozen=True)
class Publication:
    """The server, the runs to publish, and how these were evaluated and selected."""

    tracking: TrackingConfig
    runs: list[RunSettings]
    evaluate: EvaluateConfig
    select: SelectConfig
