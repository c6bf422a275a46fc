"""Sizes of a task that an estimate needs: problems of a split, and rollouts of a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.config import profiles
from dopsd.tasks.common.storage import DATA

if TYPE_CHECKING:
    from dopsd.config.params import Params

ASSUMED = 256  # problems of a split whose rows were never read


def problems(params: Params, task: str, split: str) -> int:
    """Return how many problems a split has: as set, as prepared, or ASSUMED."""
    section = vars(params.data.tasks[task])
    size = section.get(split)
    if isinstance(size, int):
        return min(size, section.get("limit") or size)
    path = DATA / task / f"{split}.jsonl"
    return len(path.read_bytes().splitlines()) if path.is_file() else ASSUMED


def facts(params: Params, task: str) -> dict[str, Any]:
    """Return the fields of estimate.Facts but for the prompt.

    Without a figure for the base every problem takes all attempts of d_opsd.
    """
    attempts = profiles.attempts(params.model_of(task).path, task)
    test = vars(params.data.tasks[task]).get("limit") or profiles.test_sizes().get(task)
    return {
        "attempts": attempts or float(params.method.d_opsd.attempts),
        "is_measured": attempts is not None,
        "test": test or problems(params, task, "test"),
    }
