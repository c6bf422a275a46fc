"""Section `tracking`: the MLflow server and the names used there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dopsd.core.settings import Name, Section


class TrackingConfig(Section):
    """Where runs are published; the environment variable MLFLOW_TRACKING_URI overrides `uri`."""

    enabled: bool = True  # send runs to MLflow
    uri: str | None = None  # the tracking server; null: an sqlite file in the project root
    experiment: Annotated[str, Field(min_length=1, max_length=500)] = "dopsd"  # MLflow experiment
    registered_model: Name = "dopsd"  # registered models are named <registered_model>-<task>
