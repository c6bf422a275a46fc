"""Save a chart view of the experiment that compares the runs of a task in MLflow's UI.

Own runs come first. Published rows are in a folded group, and only if an own run has their model
and protocol. The format is that of "share view" in MLflow 3.17; other versions ignore unknown keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.palette import run_colour
from dopsd.tracking.client import SHOWN_IN_PERCENT, TRAINING_MODE, percent_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SHARED_VIEW = "mlflow.sharedViewState."  # prefix of the experiment tags that hold views by key
RUNS_SHOWN = 100
PAGE = 1000  # runs of an answer of the server
SECTIONS = {"results": "Results of the selected checkpoint", "curves": "Over updates"}
LINE = {
    "lineSmoothness": 0,
    "scaleType": "linear",
    "xAxisScaleType": "linear",
    "xAxisKey": "step",
    "yAxisKey": "metric",
    "selectedXAxisMetricKey": "",
    "yAxisExpressions": [],
    "useGlobalLineSmoothing": False,
    "useGlobalXaxisKey": False,
}


@dataclass(frozen=True)
class _Chart:
    """A chart of one metric."""

    metric: str
    section: str  # key of SECTIONS: bars in "results", lines in "curves"
    is_bounded: bool = True  # a collapsed run stretches the y axis of unbounded ones


CHARTS = (
    _Chart("best/test_accuracy", "results"),
    _Chart("best/test_difference", "results"),
    _Chart("eval/accuracy", "curves"),
    _Chart("train/first_attempt_score", "curves"),
    _Chart("train/loss", "curves", is_bounded=False),
    _Chart("train/grad_norm", "curves", is_bounded=False),
)


def save(client: MlflowClient, experiment: str, task: str) -> None:
    """Save the view of a task as a tag of the experiment, and give its runs their colours."""
    runs = _runs_of(client, experiment, task)
    colour_runs(client, runs)
    shown_runs = comparable(runs)
    drawn = _drawn(shown_runs)
    ranges = {
        chart.metric: readable_range(_histories(client, drawn, chart.metric))
        for chart in CHARTS
        if not chart.is_bounded
    }
    state = json.dumps(_view(task, shown_runs, ranges))
    client.set_experiment_tag(experiment, f"{SHARED_VIEW}dopsd-{task}", state)


def _runs_of(client: MlflowClient, experiment: str, task: str) -> list[Run]:
    """Return all runs of a task; an answer of the server holds a part of them."""
    runs: list[Run] = []
    token = None
    while True:
        query = f"tags.task = '{task}'"
        page = client.search_runs([experiment], query, max_results=PAGE, page_token=token)
        runs += page
        if not (token := page.token):
            return runs


def _drawn(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that charts draw: the first ones of the view's order."""
    order = _order(runs)
    return sorted(runs, key=lambda run: -run.data.metrics.get(order, -math.inf))[:RUNS_SHOWN]


def view_link(page: str, experiment: str, task: str) -> str:
    """Return the address of a task's view."""
    query = f"{TRAINING_MODE}&compareRunsMode=CHART&viewStateShareKey=dopsd-{task}"
    return f"{page}/#/experiments/{experiment}/runs?{query}"


def comparable(runs: Sequence[Run]) -> list[Run]:
    """Return the trained runs, and the published rows that have the model and protocol of one.

    Without trained runs all published rows are returned.
    """
    trained = [run for run in runs if not is_published(run)]
    conditions = {_conditions(run) for run in trained}
    return [
        run
        for run in runs
        if not is_published(run) or not trained or _conditions(run) in conditions
    ]


def is_published(run: Run) -> bool:
    """Tell whether a run is a row of a paper."""
    return bool(run.data.tags.get("source") == "published")


def _conditions(run: Run) -> tuple[str, str]:
    """Return the name of the model, without organisation or folder, and the protocol."""
    tags = run.data.tags
    return tags.get("model", "").rstrip("/").rpartition("/")[2], tags.get("protocol", "")


def _view(
    task: str, runs: Sequence[Run], ranges: dict[str, tuple[float, float] | None]
) -> dict[str, Any]:
    """Return the view of a task: bars of test accuracy, then curves; the best run first.

    Args:
        runs: the runs that the view shows; a chart needs one that has its metric.
        ranges: range of the y axis by metric, None for an automatic one.
    """
    charts = [
        _chart(chart, _metric(chart), ranges.get(chart.metric))
        for chart in CHARTS
        if any(chart.metric in run.data.metrics for run in runs)
    ]
    return {
        **_rows(task, runs),
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,
        "compareRunCharts": charts,
        "compareRunSections": _sections(charts, runs),
    }


def _rows(task: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return which runs the list has, in which order, and its groups.

    A folded group is not drawn. Only trained runs have a difference to the base: ordered by it,
    they come before published rows.
    """
    has_published, has_both = any(map(is_published, runs)), _has_both(runs)
    rows = {
        "searchFilter": f"tags.task = '{task}'"
        + ("" if has_published else " AND tags.source = 'trained'"),
        "orderByKey": f"metrics.`{_order(runs)}`",
        "orderByAsc": False,
    }
    if not has_both:
        return rows
    key = {"mode": "tag", "groupByData": "source"}
    return rows | {
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [key]},
        "groupsExpanded": {"tag.source.trained": True, "tag.source.published": False},
        "useGroupedValuesInCharts": False,
    }


def _has_both(runs: Sequence[Run]) -> bool:
    """Return whether there are published rows and trained runs."""
    return any(map(is_published, runs)) and not all(map(is_published, runs))


def _order(runs: Sequence[Run]) -> str:
    """Return the metric that orders the runs, from high to low."""
    return "best/test_difference" if _has_both(runs) else "best/test_accuracy"


def _metric(chart: _Chart) -> str:
    """Return the metric to draw, in percent if it is a share."""
    is_share = chart.metric in SHOWN_IN_PERCENT
    return percent_name(chart.metric) if is_share else chart.metric


def _chart(chart: _Chart, metric: str, limits: tuple[float, float] | None) -> dict[str, Any]:
    line = LINE | {"selectedMetricKeys": [metric]}
    if limits:
        line |= {"range": dict(zip(("yMin", "yMax"), limits, strict=True))}
    return {
        "uuid": chart.metric,
        "metricSectionId": chart.section,
        "deleted": False,
        "isGenerated": False,
        "type": "BAR" if chart.section == "results" else "LINE",
        "metricKey": metric,
        "runsCountToCompare": RUNS_SHOWN,
        **(line if chart.section == "curves" else {}),
    }


def _sections(charts: Sequence[dict[str, Any]], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the sections of the charts, then folded ones for the charts that MLflow adds."""
    used = {chart["metricSectionId"] for chart in charts}
    names = {key: name for key, name in SECTIONS.items() if key in used}
    added = sorted({name.rpartition("/")[0] for run in runs for name in run.data.metrics})
    return [
        {"uuid": key, "name": name, "display": key in SECTIONS, "isReordered": False, "columns": 2}
        for key, name in (names | dict(zip(added, added, strict=True))).items()
    ]


def _histories(client: MlflowClient, runs: Sequence[Run], metric: str) -> list[list[float]]:
    """Return the values of a metric in each run that has it."""
    return [
        [point.value for point in client.get_metric_history(run.info.run_id, metric)]
        for run in runs
        if metric in run.data.metrics
    ]


OF_RUN = 10  # times a run's median size: larger values of this run are cut
OF_RUNS = 100  # times the median of these medians: a run beyond is cut as a whole
MARGIN = 0.05  # of the range, above and below


def readable_range(histories: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return the lowest and highest value that a chart shows; None if all values fit.

    Losses of two methods may differ by a factor of 50, and a chart shows both. Values far from
    those of the same run, and runs far from all others, are outside.
    """
    runs = [[value for value in history if isfinite(value)] for history in histories]
    sizes = [median(map(abs, run)) if run else 0.0 for run in runs]
    positive_sizes = [size for size in sizes if size]
    limit = OF_RUNS * median_low(positive_sizes) if positive_sizes else 0.0
    shown = [
        value
        for run, size in zip(runs, sizes, strict=True)
        for value in run
        if size <= limit and (not size or abs(value) <= OF_RUN * size)
    ]
    if len(shown) == sum(map(len, runs)):
        return None
    margin = MARGIN * (max(shown) - min(shown)) or 1.0
    return min(shown) - margin, max(shown) + margin


COLOUR_TAG = "mlflow.runColor"  # MLflow's UI reads it, and writes it when a user picks a colour


def colour_runs(client: MlflowClient, runs: Sequence[Run]) -> None:
    """Give runs without a colour the colour of their method and seed."""
    for run in runs:
        tags = run.data.tags
        if COLOUR_TAG not in tags:
            colour = run_colour(ALGORITHMS, tags.get("method", ""), int(tags.get("seed", 0)))
            client.set_tag(run.info.run_id, COLOUR_TAG, colour)
