"""Results of a collect: the selected rollout of each problem, and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.core.metrics import MetricSums
    from dopsd.core.types import Problem, Rollout, Score


@dataclass(frozen=True)
class SelectedRollout:
    """The rollout of a problem to learn from, with its first attempt for statistics.

    Attributes:
        problem: the problem.
        best: the best attempt.
        score: score of the best attempt.
        first_rollout: the first attempt.
        first_score: score of the first attempt.
        attempts: number of attempts made.
        is_kept: whether training uses the best attempt.
    """

    problem: Problem
    best: Rollout
    score: Score
    first_rollout: Rollout
    first_score: Score
    attempts: int
    is_kept: bool


@dataclass(frozen=True)
class RolloutStats:
    """Statistics of a collect.

    Attributes:
        counters: `trajectories`, `rollouts` and `sampled_tokens`, added up over collects.
        metrics: metrics of the rollouts, as sums.
    """

    counters: dict[str, int]
    metrics: MetricSums
