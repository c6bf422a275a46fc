"""Save a chart view of the experiment that compares the runs of a task in MLflow's UI."""

from __future__ import annotations

import json
from typing import Any, Protocol

# Metrics and chart types of the two parts of the page.
RESULTS = {"best/test_accuracy": "BAR", "best/test_difference": "BAR"}
CURVES = {
    "eval/accuracy": "LINE",
    "train/first_attempt_score": "LINE",
    "train/loss": "LINE",
    "train/grad_norm": "LINE",
}
SHARED_VIEW = "mlflow.sharedViewState."  # prefix of the experiment tags that hold views by key
RUNS_SHOWN = 100
CURVE = {
    "lineSmoothness": 0,
    "scaleType": "linear",
    "xAxisScaleType": "linear",
    "xAxisKey": "step",
    "yAxisKey": "metric",
    "selectedXAxisMetricKey": "",
    "yAxisExpressions": [],
    "range": {},
    "useGlobalLineSmoothing": False,
    "useGlobalXaxisKey": False,
}


class Experiments(Protocol):
    """The part of an MlflowClient that is needed here."""

    def set_experiment_tag(self, experiment_id: str, key: str, value: object) -> None:
        """Set a tag of an experiment."""
        ...


def save(client: Experiments, experiment: str, task: str) -> None:
    """Save the view of a task as a tag of the experiment.

    Args:
        client: the MLflow client.
        experiment: the experiment's id.
        task: the task whose runs the view shows.
    """
    client.set_experiment_tag(experiment, f"{SHARED_VIEW}dopsd-{task}", json.dumps(view(task)))


def link(page: str, experiment: str, task: str) -> str:
    """Return the address of a task's view.

    Args:
        page: the address of MLflow's UI.
        experiment: the experiment's id.
        task: the task.
    """
    return f"{page}/#/experiments/{experiment}/runs?compareRunsMode=CHART&viewStateShareKey=dopsd-{task}"  # noqa: E501


def view(task: str) -> dict[str, Any]:
    """Return the view of a task: bars of test accuracy, then curves; all runs, the best first.

    The format is that of "share view" in the UI of MLflow 3.17. Other versions ignore unknown keys.
    """
    charts = [_chart(metric, kind, "results") for metric, kind in RESULTS.items()]
    charts += [_chart(metric, kind, "curves") for metric, kind in CURVES.items()]
    sections = (("results", "Results of the selected checkpoint"), ("curves", "Over updates"))
    return {
        "searchFilter": f"tags.task = '{task}'",
        "orderByKey": "metrics.`best/test_accuracy`",
        "orderByAsc": False,
        "runsHiddenMode": "SHOWALL",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": key, "name": name, "display": True, "isReordered": False, "columns": 2}
            for key, name in sections
        ],
    }


def _chart(metric: str, kind: str, section: str) -> dict[str, Any]:
    curve_options = CURVE | {"selectedMetricKeys": [metric]} if kind == "LINE" else {}
    layout = {"uuid": metric, "metricSectionId": section, "deleted": False, "isGenerated": False}
    return layout | {
        "type": kind,
        "metricKey": metric,
        "runsCountToCompare": RUNS_SHOWN,
        **curve_options,
    }
