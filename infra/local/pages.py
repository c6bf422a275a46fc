"""Addresses of MLflow's pages: all charts, and the saved views that compare a task's runs."""

from __future__ import annotations

import urllib.error
import urllib.parse
from contextlib import suppress

import yaml
from processes import ROOT
from runs import call

EXPERIMENT = "dopsd"  # default of tracking.experiment
VIEWS = "mlflow.sharedViewState.dopsd-"  # tags of the experiment: a saved view for each task
# of MLflow's UI: its model training mode, not its GenAI mode, whose menu lacks runs and models
QUERY = "workflowType=machine_learning&compareRunsMode=CHART"


def experiment_name() -> str:
    """Return tracking.experiment of params.yaml; the default if the file does not say."""
    with suppress(OSError, yaml.YAMLError, KeyError, TypeError):
        return str(
            yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["tracking"][
                "experiment"
            ]
        )
    return EXPERIMENT


def experiment_pages(url: str) -> list[tuple[str, str]]:
    """Create the project's experiment if needed, and return names and addresses of its pages.

    Args:
        url: address of the MLflow server.

    Returns:
        The page of all charts, then the views: tasks with own runs first.
    """
    api, name = f"{url}/api/2.0/mlflow", experiment_name()
    with suppress(urllib.error.HTTPError):  # it exists already
        call(f"{api}/experiments/create", {"name": name})
    query = urllib.parse.urlencode({"experiment_name": name})
    experiment = call(f"{api}/experiments/get-by-name?{query}")["experiment"]
    page = f"{url}/#/experiments/{experiment['experiment_id']}/runs?{QUERY}"
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
