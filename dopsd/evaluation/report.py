"""Scores of all attempts as one report with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.statistics import bootstrap, wilson
from dopsd.core.types import EvalReport, Score

if TYPE_CHECKING:
    from dopsd.rollout.config import SamplingConfig
    from dopsd.rollout.prompts import PromptSet


def report(
    prompt_set: PromptSet,
    protocol: SamplingConfig,
    scores: dict[str, list[Score]],
    attempts: int,
    resamples: int,
) -> EvalReport:
    """Verdicts of every attempt at every problem, as figures: Wilson interval for 0/1 scores,
    bootstrap for partial ones.
    """
    task = prompt_set.task
    scores_by_problem = [scores[problem.id] for problem in prompt_set.problems]
    first_scores = [attempt_scores[0] for attempt_scores in scores_by_problem]
    best_scores = [
        max(score.score for score in attempt_scores) for attempt_scores in scores_by_problem
    ]

    def interval(values: list[float]) -> tuple[float, float]:
        return (
            bootstrap(values, resamples) if task.graded else wilson(round(sum(values)), len(values))
        )

    values = [score.score for score in first_scores]
    return EvalReport(
        task=task.name,
        split=prompt_set.split,
        protocol=protocol.model_dump(),
        accuracy=sum(values) / len(values),
        interval=interval(values),
        n=len(values),
        whole=sum(score.correct for score in first_scores) / len(values),
        figures={
            name: sum(v.figures[name] for v in first_scores) / len(first_scores)
            for name in sorted(first_scores[0].figures)
        },
        attempts=attempts,
        pass_at_k=sum(best_scores) / len(best_scores),
        pass_at_k_interval=interval(best_scores),
        per_problem={
            problem.id: value for problem, value in zip(prompt_set.problems, values, strict=True)
        },
    )
