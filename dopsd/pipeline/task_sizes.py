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
    size = vars(params.data.tasks[task]).get(split)
    if isinstance(size, int):
        return size
    path = DATA / task / f"{split}.jsonl"
    return len(path.read_bytes().splitlines()) if path.is_file() else ASSUMED


def facts(params: Params, task: str) -> dict[str, Any]:
    """Return the figures of LLaDA-8B-Instruct on a task, as `profiles.facts` has them.

    For a task without published figures every problem takes all attempts of d_opsd.
    """
    if task in profiles.known_facts():
        return profiles.facts(task)
    attempts = float(params.method.d_opsd.attempts)
    return {"attempts": attempts, "test": problems(params, task, "test")}
