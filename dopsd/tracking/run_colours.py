"""Colours of runs in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.palette import run_colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Run

COLOUR_TAG = "mlflow.runColor"  # MLflow's UI reads it, and writes it when a user picks a colour


def colour_runs(client: MlflowClient, runs: Sequence[Run]) -> None:
    """Give runs without a colour the colour of their method and seed."""
    for run in runs:
        tags = run.data.tags
        if COLOUR_TAG not in tags:
            colour = run_colour(ALGORITHMS, tags.get("method", ""), int(tags.get("seed", 0)))
            client.set_tag(run.info.run_id, COLOUR_TAG, colour)
