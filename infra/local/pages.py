"""Addresses of MLflow's pages: all charts, and the saved views that compare a task's runs."""

from __future__ import annotations

import urllib.error
from contextlib import suppress

from runs import call

EXPERIMENT = "dopsd"
VIEWS = "mlflow.sharedViewState.dopsd-"  # tags of the experiment: a saved view for each task


def experiment_pages(url: str) -> list[tuple[str, str]]:
    """Create the project's experiment if needed, and return names and addresses of its pages.

    Args:
        url: address of the MLflow server.

    Returns:
        The page of all charts, then the views: tasks with own runs first.
    """
    api = f"{url}/api/2.0/mlflow"
    with suppress(urllib.error.HTTPError):  # it exists already
        call(f"{api}/experiments/create", {"name": EXPERIMENT})
    experiment = call(f"{api}/experiments/get-by-name?experiment_name={EXPERIMENT}")["experiment"]
    page = f"{url}/#/experiments/{experiment['experiment_id']}/runs?compareRunsMode=CHART"
    tasks = [
        tag["key"].removeprefix(VIEWS)
        for tag in experiment.get("tags", [])
        if tag["key"].startswith(VIEWS)
    ]

    def has_no_run(task: str) -> bool:
        query = f"tags.task = '{task}' AND tags.source = 'trained'"
        body = {"experiment_ids": [experiment["experiment_id"]], "filter": query, "max_results": 1}
        return not call(f"{api}/runs/search", body).get("runs")

    own_first = sorted(tasks, key=lambda task: (has_no_run(task), task))
    views = [(f"  {task}", f"{page}&viewStateShareKey=dopsd-{task}") for task in own_first]
    return [("MLflow", page), *views]
