"""`dopsd publish`: MLflow runs, checkpoints and the champion alias, rebuilt from files on disk.

No stage writes to the registry: a result restored from DVC's cache, without running anything, must be published as
well. Everything is looked up by digest or fingerprint first, so that publishing twice changes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dopsd import tracking, views
from dopsd.card import Origin, card, commit, data_digests
from dopsd.checkpoint import ADAPTER
from dopsd.config import Params, kind_of
from dopsd.errors import TEMPORARY, DopsdError
from dopsd.layout import (
    LOG,
    PUBLISHED,
    RunKey,
    read_log,
    read_table,
    report_folder,
    run_folder,
    scratch_folder,
)
from dopsd.progress import log, read_json, write_json
from dopsd.provenance import sha256
from dopsd.registry import (
    ACCURACY,
    DIGEST_TAG,
    JUDGED_BY,
    Chosen,
    log_model,
    promote_champion,
    register,
)
from dopsd.run_identity import first_code, is_current
from dopsd.tracking import Identity, connect, shown, sync, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = "DOPSD_MLFLOW_PAGE"
START_OR_NAME = "`make up` starts servers here, then `source work/services/env` names them"


@dataclass(frozen=True)
class Tracked(RunKey):
    """A cell whose stages have run, and its MLflow run."""

    run_id: str


def run(params: Params) -> dict[str, int]:
    """Publish every finished cell of the matrix; the champion's version by task."""
    if not params.tracking.enabled:
        raise DopsdError("tracking.enabled is false in params.yaml: set it to true to publish")
    uri = tracking_uri(params.tracking.uri)
    with one_line(uri):
        client = connect(uri)
        run_keys = [run_key for run_key in _run_keys(params, client) if run_key]
        best: dict[str, tuple[float, int]] = {}
        for run_key in run_keys:
            version, accuracy = _publish_run(params, client, run_key)
            best[run_key.task] = max(best.get(run_key.task, (-1.0, 0)), (accuracy, version))
        champions = {
            task: promote_champion(client, _model_name(params, task), version)
            for task, (_, version) in best.items()
        }
        pages = _pages(params, client, uri, run_keys)
        write_json(PUBLISHED, pages)
    log(f"publish: {len(run_keys)} runs are in {shown(uri)}")
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
        what = "no space is left for the artifacts of" if is_full else "no expected answer from"
        said, advice = " ".join(str(error).split())[:160], "" if is_full else f"; {START_OR_NAME}"
        raise DopsdError(
            f"publish: {what} {shown(uri)} ({said}); all results are on disk, publish again later{advice}",
            TEMPORARY,
        ) from error


def _pages(
    params: Params, client: MlflowClient, uri: str, run_keys: list[Tracked]
) -> dict[str, Any]:
    """What a flow links to: the server's address (none for a local file), each cell's run, each task's comparison.

    Workers may know the server by a name that browsers do not: DOPSD_MLFLOW_PAGE is the address that people open.
    """
    experiment = client.get_experiment_by_name(params.tracking.experiment)
    page = os.environ.get(PAGE) or (shown(uri) if uri.startswith("http") else None)
    page = page.rstrip("/") if page else None
    runs = {str(run_key): run_key.run_id for run_key in run_keys}
    found: dict[str, Any] = {
        "page": page,
        "experiment": experiment.experiment_id if experiment else None,
        "runs": runs,
    }
    for task in {run_key.task for run_key in run_keys}:
        views.save(client, found["experiment"], task)
    return found | {
        "comparison": {
            c.task: views.link(page or local_page(), found["experiment"], c.task) for c in run_keys
        }
    }


def local_page() -> str:
    """Where `make up` or `make mlflow` shows a local file."""
    return f"http://127.0.0.1:{tracking.local_port('mlflow', 5000)}"


def _model_name(params: Params, task: str) -> str:
    return f"{params.tracking.registered_model}-{task}"


def _run_keys(params: Params, client: MlflowClient) -> list[Tracked | None]:
    m = params.matrix
    return [_run_key(params, client, t, n, s) for t in m.tasks for n in m.methods for s in m.seeds]


def _run_key(
    params: Params, client: MlflowClient, task: str, method: str, seed: int
) -> Tracked | None:
    folder = run_folder(task, method, seed)
    if not (folder / "test" / "paired.json").is_file():
        log(f"publish: {folder} has no test results yet; left out")
        return None
    scratch = scratch_folder(params, task, method, seed)
    if not is_current(
        params, RunKey(task, method, seed), read_json(folder / "train.json", "dopsd train")
    ):
        log(
            f"publish: {folder} was made with other settings, data or code; left out until `dvc repro` has run"
        )
        return None
    log_file = scratch / LOG
    rows = read_log(log_file) if log_file.is_file() else read_table(folder / "train.csv")
    run_id = sync(client, identity(params, task, method, seed), rows, scratch)
    return Tracked(task, method, seed, run_id)


def _publish_run(params: Params, client: MlflowClient, run_key: Tracked) -> tuple[int, float]:
    """Curve, checkpoints, figures and registration of one run; the registered version and its selection accuracy."""
    chosen = read_json(run_key.folder / "best" / "select.json", "dopsd select")
    protocols = read_json(run_key.folder / "test" / "paired.json", "dopsd test")["protocols"]
    if client.get_run(run_key.run_id).info.status != "FINISHED":
        _log_tags_and_data(client, run_key)
    models = _log_checkpoints(params, client, run_key)
    log_once(
        client,
        run_key.run_id,
        _best_metrics(chosen, protocols) | _cost(run_key, chosen["update"]),
        0,
    )
    figures = report_folder(run_key.task, run_key.method, run_key.seed)
    if figures.is_dir():
        client.log_artifacts(run_key.run_id, str(figures), "report")
    client.set_terminated(run_key.run_id, "FINISHED")
    version = _register(params, client, run_key, chosen, models[chosen["digest"]])
    return version, float(chosen["accuracy"])


def _best_metrics(chosen: dict[str, Any], protocols: dict[str, Any]) -> dict[str, float]:
    """Of the protocol that selected; the test accuracy of every other stands under its name."""
    tested = protocols[chosen["protocol"]]
    low, high = tested["paired"]["interval"]
    return {
        f"best/test_accuracy/{name}": found["best"]["accuracy"] for name, found in protocols.items()
    } | {
        "best/update": chosen["update"],
        "best/validation_accuracy"
        if chosen["split"] == "validation"
        else "best/selection_on_test": chosen["accuracy"],
        "best/test_accuracy": tested["best"]["accuracy"],
        "best/test_base_accuracy": tested["base"]["accuracy"],
        "best/test_difference": tested["paired"]["difference"],
        "best/test_difference_low": low,
        "best/test_difference_high": high,
    }


def _cost(run_key: Tracked, update: int) -> dict[str, float]:
    """What the selected checkpoint had cost."""
    rows = [row for row in read_table(run_key.folder / "train.csv") if row["update"] == update]
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
    """Log what the run does not have: another value at the same step is a new evaluation, and is added."""
    for name, value in metrics.items():
        known = [point for point in client.get_metric_history(run_id, name) if point.step == step]
        if not known or max(known, key=lambda point: point.timestamp).value != float(value):
            client.log_metric(run_id, name, float(value), step=step, model_id=model_id)


def _log_tags_and_data(client: MlflowClient, run_key: Tracked) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    for split, digest in data_digests(run_key.task).items():
        source = json.dumps({"path": f"data/{run_key.task}/{split}.jsonl"})
        data = Dataset(f"{run_key.task}-{split}", digest, "local", source)
        client.log_inputs(
            run_key.run_id, [DatasetInput(data, [InputTag("mlflow.data.context", split)])]
        )
    client.set_tag(run_key.run_id, "mlflow.source.git.commit", commit())


def _log_checkpoints(params: Params, client: MlflowClient, run_key: Tracked) -> dict[str, str]:
    """Every checkpoint as a LoggedModel with its evaluation; ids by adapter digest."""
    experiment = client.get_run(run_key.run_id).info.experiment_id
    known = client.search_logged_models(
        [experiment], f"source_run_id = '{run_key.run_id}'", max_results=1000
    )
    found = {
        m.tags[DIGEST_TAG]: m.model_id
        for m in known
        if DIGEST_TAG in m.tags and str(m.status) == "READY"
    }
    curve = read_table(run_key.folder / "curve.csv")
    curve = [row for row in curve if row["protocol"] == params.select.protocol]
    for row in curve:
        folder = run_key.folder / "train" / f"step-{row['update']:06d}"
        model = None
        if folder.is_dir():
            digest = sha256(folder / ADAPTER)
            name = f"{run_key.task}-{run_key.method}-{run_key.seed}-{folder.name}"
            model = found.get(digest) or log_model(
                client, experiment, run_key.run_id, name, folder, digest
            )
            found[digest] = model
        figures = {
            "eval/accuracy": row["accuracy"],
            "eval/low": row["low"],
            "eval/high": row["high"],
            "eval/whole": row["whole"],
        }
        log_once(client, run_key.run_id, figures, row["update"], model)
    return found


def _register(
    params: Params, client: MlflowClient, run_key: Tracked, chosen: dict[str, Any], model_id: str
) -> int:
    """The registered version of the selected checkpoint."""
    tags = {
        DIGEST_TAG: chosen["digest"],
        "method": run_key.method,
        "seed": str(run_key.seed),
        "update": str(chosen["update"]),
    }
    data, protocol = (
        data_digests(run_key.task),
        params.evaluate.protocols[chosen["protocol"]].model_dump(),
    )
    asked = json.dumps([chosen["split"], data.get(chosen["split"]), protocol], sort_keys=True)
    tags |= {
        ACCURACY: str(chosen["accuracy"]),
        JUDGED_BY: hashlib.sha256(asked.encode()).hexdigest()[:16],
    }
    made_at = client.get_run(run_key.run_id).data.tags.get("mlflow.source.git.commit") or commit()
    text = card(
        params.of(run_key.method), run_key.task, run_key.method, run_key.seed, Origin(data, made_at)
    )
    name, uri = _model_name(params, run_key.task), tracking_uri(params.tracking.uri)
    return register(client, uri, name, Chosen(run_key.run_id, model_id, tags, text))


def identity(params: Params, task: str, method: str, seed: int) -> Identity:
    """The MLflow run of this cell: the same names of tags and parameters for every method."""
    dump = params.of(method).model_dump()
    sections = {
        "sampling": dump["sampling"],
        "train": dump["train"],
        "model": dump["model"],
        "method": dump["method"][kind_of(method)],
    }
    values = {
        f"{s}.{k}": v for s, section in sections.items() for k, v in section.items() if k != "lora"
    }
    values |= {f"lora.{k}": v for k, v in dump["train"]["lora"].items()}
    tags = {
        "task": task,
        "method": method,
        "seed": str(seed),
        "model": params.model.path,
        "source": "trained",
    }
    return Identity(
        tracking_uri(params.tracking.uri),
        params.tracking.experiment,
        f"{task}-{method}-{seed}",
        f"{scratch_folder(params, task, method, seed).name}-{first_code(params, RunKey(task, method, seed))}",
        tags,
        {"task": task, "method.name": method, "seed": str(seed)}
        | {k: str(v) for k, v in values.items()},
    )


def run_log_uploader(params: Params, task: str, method: str, seed: int) -> None:
    """`dopsd follow`, started by training: copies its log until standard input closes, as it does when training ends."""

    def is_over(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    tracking.upload_log(
        identity(params, task, method, seed), scratch_folder(params, task, method, seed), is_over
    )
