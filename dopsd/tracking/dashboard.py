"""The page of MLflow's UI on which the runs of a task stand side by side: a saved chart view of the
experiment.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

RESULTS = {"best/test_accuracy": "BAR", "best/test_difference": "BAR"}
CURVES = {
    "eval/accuracy": "LINE",
    "train/first_attempt_score": "LINE",
    "train/loss": "LINE",
    "train/grad_norm": "LINE",
}
SHARED_VIEW = (  # the tag of an experiment where MLflow's UI looks for a view by its key
    "mlflow.sharedViewState."
)
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
    """What an MlflowClient can do, as far as it matters here."""

    def set_experiment_tag(self, experiment_id: str, key: str, value: object) -> None: ...


def save(client: Experiments, experiment: str, task: str) -> None:
    """The view of one task: accuracy on test first, then curves; every run is shown, the best
    first.
    """
    client.set_experiment_tag(experiment, f"{SHARED_VIEW}dopsd-{task}", json.dumps(view(task)))


def link(page: str, experiment: str, task: str) -> str:
    return f"{page}/#/experiments/{experiment}/runs?compareRunsMode=CHART&viewStateShareKey=dopsd-{task}"  # noqa: E501


def view(task: str) -> dict[str, Any]:
    """As the UI writes it for "share view" (MLflow 3.17); keys that another version does not know
    are left alone by it.
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
