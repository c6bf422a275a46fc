"""Addresses of what was published, for people and for the flows' links."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dopsd.tracking import dashboard
from dopsd.tracking.client import local_port, shown

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from dopsd.tracking.publish import Publication
    from dopsd.tracking.publish_run import Tracked

PAGE = "DOPSD_MLFLOW_PAGE"


def save_pages(
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
