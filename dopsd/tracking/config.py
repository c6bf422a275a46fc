"""Section `tracking`: where runs go."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dopsd.core.settings import Name, Section


class TrackingConfig(Section):
    """Where runs go. `uri` null is an sqlite file in the project root; MLFLOW_TRACKING_URI goes
    before both.
    """

    enabled: bool = True
    uri: str | None = None
    experiment: Annotated[str, Field(min_length=1, max_length=500)] = "dopsd"
    registered_model: Name = "dopsd"
