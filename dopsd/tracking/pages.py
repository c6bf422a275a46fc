"""Addresses of published results, for people and for the links of flows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dopsd.tracking import dashboard
from dopsd.tracking.client import local_port, shown

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from dopsd.tracking.publish import Publication
    from dopsd.tracking.publish_run import Tracked

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
    return pages | {
        "comparison": {
            c.key.task: dashboard.link(page or local_page(), pages["experiment"], c.key.task)
            for c in tracked_runs
        }
    }


def local_page() -> str:
    """Return the address at which `make up` or `make mlflow` shows a local database."""
    return f"http://127.0.0.1:{local_port('mlflow', 5000)}"
