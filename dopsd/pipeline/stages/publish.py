"""`dopsd publish`: MLflow runs, checkpoints and the champion alias, from files on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.tracking.publish import Publication, publish

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params) -> dict[str, int]:
    """Publish every finished run of the matrix; return the champion's version by task."""
    return publish(Publication(params.tracking, params.runs, params.evaluate, params.select))
