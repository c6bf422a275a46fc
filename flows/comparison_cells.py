"""The cells of a comparison that is spread over machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dopsd.core.paths import RunKey


@dataclass
class Cell:
    """One run of the comparison.

    Args:
        key: Task, method and seed.
        parameters: Parameters of a machine's training flow.
        attempts: How often it was started.
        failures: Reason by machine on which it failed.
    """

    key: RunKey
    parameters: dict[str, Any]
    attempts: int = 0
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """A cell on a machine."""

    cell: Cell
    machine: str
    run_id: UUID
