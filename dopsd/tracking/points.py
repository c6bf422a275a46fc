"""Log points of metrics once: those that the server lacks, in as few requests as fit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from dopsd.tracking.client import MOST_METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient


class Point(NamedTuple):
    """A value of a metric."""

    metric: str
    value: float
    step: int
    model_id: str | None = None  # of the LoggedModel that it belongs to, if any


def log_missing(client: MlflowClient, run_id: str, points: Sequence[Point]) -> None:
    """Log the points that the server lacks, or whose last value at the step differs.

    A different value at the same step comes from a new evaluation and is added. Each metric's
    history is asked for once: a run may have a thousand checkpoints.
    """
    from mlflow.entities import Metric

    known: dict[tuple[str, int], float] = {}
    for name in dict.fromkeys(point.metric for point in points):
        history = client.get_metric_history(run_id, name)
        for logged in sorted(history, key=lambda logged: logged.timestamp):
            known[name, logged.step] = logged.value
    now = int(time.time() * 1000)
    missing = [
        Metric(point.metric, float(point.value), now, point.step, model_id=point.model_id)
        for point in points
        if known.get((point.metric, point.step)) != float(point.value)
    ]
    for first in range(0, len(missing), MOST_METRICS):
        client.log_batch(run_id, metrics=missing[first : first + MOST_METRICS])


def log_once(client: MlflowClient, run_id: str, metrics: dict[str, float], step: int) -> None:
    """Log the metrics whose last value at this step is missing or differs."""
    log_missing(client, run_id, [Point(name, value, step) for name, value in metrics.items()])
