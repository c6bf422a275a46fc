"""`dopsd publish`: copy finished runs from disk to MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.extras import require
from dopsd.pipeline.run_report import refresh
from dopsd.tracking.publish import publish
from dopsd.tracking.publish_run import Publication

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params) -> dict[str, int]:
    """Publish the matrix' runs and its champions; return each champion's version by task."""
    if params.tracking.enabled:
        require("publish", "mlflow")
        refresh(params, [run.key for run in params.runs if run.key.is_tested], "publish")
    return publish(Publication(params.tracking, params.runs, params.evaluate, params.select))
