"""`dopsd publish`: send finished runs from files on disk to MLflow.

Published are runs, checkpoints, registered models and the champion alias. No stage writes to the
registry, so that results from DVC's cache can be published too. Everything is looked up by digest
or fingerprint first: publishing twice changes nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.files import read_json, write_json
from dopsd.core.paths import LOG, MLFLOW_PAGES
from dopsd.core.progress import log
from dopsd.core.tables import read_log, read_table
from dopsd.tracking import dashboard
from dopsd.tracking.client import connect, local_port, one_line, shown, sync, tracking_uri
from dopsd.tracking.log_uploader import mlflow_identity
from dopsd.tracking.model_registry import promote_champion
from dopsd.tracking.publish_run import Publication, Tracked, model_name, publish_run
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient


def publish(publication: Publication) -> dict[str, int]:
    """Publish every finished run, and return the champion's version by task."""
    if not publication.tracking.enabled:
        raise Code.TRACKING_OFF.error(
            "tracking.enabled is false in params.yaml; to publish, first run"
            " `dopsd params --set tracking.enabled=true`"
        )
    uri = tracking_uri(publication.tracking.uri)
    with one_line(uri):
        client = connect(uri)
        candidates = [_tracked(publication, client, run) for run in publication.runs]
        tracked_runs = [candidate for candidate in candidates if candidate]
        best: dict[str, tuple[float, int]] = {}
        for tracked in tracked_runs:
            version, accuracy = publish_run(publication, client, tracked)
            best[tracked.key.task] = max(best.get(tracked.key.task, (-1.0, 0)), (accuracy, version))
        champions = {
            task: promote_champion(client, model_name(publication, task), version)
            for task, (_, version) in best.items()
        }
        pages = save_pages(publication, client, uri, tracked_runs)
        write_json(MLFLOW_PAGES, pages)
    number = len(tracked_runs)
    log(f"publish: {number} run{' is' if number == 1 else 's are'} in {shown(uri)}")
    for task, link in pages["comparison"].items():
        log(f"  {task} side by side, while MLflow runs: {link}")
    return champions


def _tracked(publication: Publication, client: MlflowClient, run: RunSettings) -> Tracked | None:
    """Send the log of a finished run and return its MLflow run; None if not finished or stale."""
    folder = run.key.folder
    if not run.key.is_tested:
        log(f"publish: {folder} has no test results yet; skipped")
        return None
    identified = identify(run)
    if not identified.is_current(read_json(folder / "train.json", "dopsd train")):
        log(
            f"publish: {folder} was made with other settings, data or code; skipped until `dvc"
            " repro` has run"
        )
        return None
    scratch = identified.folder
    log_file = scratch / LOG
    rows = read_log(log_file) if log_file.is_file() else read_table(folder / "train.csv")
    return Tracked(run, sync(client, mlflow_identity(run, publication.tracking), rows, scratch))


PAGE = "DOPSD_MLFLOW_PAGE"  # environment variable with the address that browsers use


def save_pages(
    publication: Publication, client: MlflowClient, uri: str, tracked_runs: list[Tracked]
) -> dict[str, Any]:
    """Save the comparison view of each task, and return what flows link to.

    Workers may reach the server under a name that browsers do not know: DOPSD_MLFLOW_PAGE is the
    address for browsers.

    Returns:
        `page`: the server's address, None for a local file; `experiment`: its id; `runs`: run ids
        by run; `comparison`: the address of each task's view.
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
    # there `make up` or `make mlflow` shows a local database
    shown_at = page or f"http://127.0.0.1:{local_port('mlflow', 5000)}"
    return pages | {
        "comparison": {
            c.key.task: dashboard.view_link(shown_at, pages["experiment"], c.key.task)
            for c in tracked_runs
        }
    }
