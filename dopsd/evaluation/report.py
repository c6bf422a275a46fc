"""Scores of all attempts as one report with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.statistics import bootstrap, wilson
from dopsd.core.types import EvalReport, Score

if TYPE_CHECKING:
    from dopsd.rollout.config import SamplingConfig
    from dopsd.rollout.prompts import PromptSet


def report(
    asked: PromptSet,
    protocol: SamplingConfig,
    scores: dict[str, list[Score]],
    attempts: int,
    resamples: int,
) -> EvalReport:
    """Verdicts of every attempt at every problem, as figures: Wilson interval for 0/1 scores, bootstrap for partial ones."""
    task = asked.task
    tried = [scores[problem.id] for problem in asked.problems]
    first = [found[0] for found in tried]
    best = [max(score.score for score in found) for found in tried]

    def interval(values: list[float]) -> tuple[float, float]:
        return (
            bootstrap(values, resamples) if task.graded else wilson(round(sum(values)), len(values))
        )

    values = [score.score for score in first]
    return EvalReport(
        task=task.name,
        split=asked.split,
        protocol=protocol.model_dump(),
        accuracy=sum(values) / len(values),
        interval=interval(values),
        n=len(values),
        whole=sum(score.correct for score in first) / len(values),
        figures={
            name: sum(v.figures[name] for v in first) / len(first)
            for name in sorted(first[0].figures)
        },
        attempts=attempts,
        pass_at_k=sum(best) / len(best),
        pass_at_k_interval=interval(best),
        per_problem={
            problem.id: value for problem, value in zip(asked.problems, values, strict=True)
        },
    )
