"""`dopsd publish`: copy finished runs from disk to MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.tracking.publish import Publication, publish

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params) -> dict[str, int]:
    """Publish the matrix' runs and its champions; return each champion's version by task."""
    return publish(Publication(params.tracking, params.runs, params.evaluate, params.select))
