"""Summarise the scores of an evaluation as one report with intervals."""

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
    """Return the report of an evaluation.

    Intervals are 95%: Wilson for 0/1 scores, bootstrap over problems for partial scores.

    Args:
        prompt_set: the task, the split and its problems.
        protocol: the decoding settings.
        scores: the scores of all attempts by problem id.
        attempts: k of pass@k.
        resamples: bootstrap resamples.
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
        protocol=protocol.decisive(),
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
