"""What a collect gives: all attempts at a problem, and the one to learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.core.metrics import MetricSums
    from dopsd.core.types import Problem, Rollout, Score


@dataclass(frozen=True)
class SelectedRollout:
    """One problem's attempts: the one to learn from, the first, and their scores."""

    problem: Problem
    best: Rollout
    score: Score
    first_rollout: Rollout
    first_score: Score
    attempts: int
    is_kept: bool


@dataclass(frozen=True)
class RolloutStats:
    """What a collect cost and gave: counters to add up, and metrics of its rollouts."""

    counters: dict[str, int]
    metrics: MetricSums
