"""Colours of runs in MLflow: the method's, lighter or darker by seed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from dopsd.algorithms.common.config import kind_of
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.palette import NEUTRAL, colour_of, shade_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Run

COLOUR_TAG = "mlflow.runColor"  # MLflow's UI reads it, and writes it when a user picks a colour
VARIANTS, HUES = 100, 360  # variants are at positions beyond those of methods


def run_colour(method: str, seed: int = 0) -> str:
    """Return the colour of a run, as #rrggbb.

    A variant of a method has a hue of its own, by its name. The base and methods that are no longer
    installed are grey.
    """
    if kind_of(method) not in ALGORITHMS.names:
        return NEUTRAL
    is_variant = method != kind_of(method)
    position = (
        VARIANTS + crc32(method.encode()) % HUES if is_variant else ALGORITHMS.position(method)
    )
    return shade_of(colour_of(position), seed)


def colour_runs(client: MlflowClient, runs: Sequence[Run]) -> None:
    """Give runs without a colour the colour of their method and seed."""
    for run in runs:
        tags = run.data.tags
        if COLOUR_TAG not in tags:
            colour = run_colour(tags.get("method", ""), int(tags.get("seed", 0)))
            client.set_tag(run.info.run_id, COLOUR_TAG, colour)
