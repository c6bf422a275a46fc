"""Find the checkpoints that are worth an exact score: successive halving (arXiv 1603.06560).

Every round has twice the problems of the one before. After each, those checkpoints leave that are
surely behind the best one, by an interval of the differences at the same problems, and of the
others the lower half.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.progress import log
from dopsd.core.statistics import bootstrap

if TYPE_CHECKING:
    from dopsd.evaluation.config import RaceConfig
    from dopsd.evaluation.evaluator import Evaluator
    from dopsd.rollout.config import EvalProtocol

Report = dict[str, Any]


def rounds(candidates: int, problems: int, settings: RaceConfig) -> list[tuple[int, int]]:
    """Return the problems and checkpoints of each round, if nobody leaves but the lower half."""
    found, number, first = [], candidates, min(settings.first, problems)
    while number > settings.leaders:
        found.append((first, number))
        if first == problems:
            break
        number, first = max(settings.leaders, -(-number // 2)), min(2 * first, problems)
    return found


def answers(candidates: int, problems: int, settings: RaceConfig) -> int:
    """Return the answers of a race if nobody leaves but the lower half; rounds share answers."""
    found, before = 0, 0
    for first, number in rounds(candidates, problems, settings):
        found, before = found + number * (first - before), first
    return found


def race(
    evaluator_of: Callable[[int], Evaluator],
    adapters: list[Path],
    protocol: EvalProtocol,
    settings: RaceConfig,
    problems: int,
) -> tuple[list[Path], dict[Path, Report]]:
    """Return the leaders, in the order of `adapters`, and the last report of every checkpoint.

    Args:
        evaluator_of: makes the evaluator of the first so many problems.
        problems: of the whole split.
    """
    left, last = adapters, dict[Path, Report]()
    for first, _ in rounds(len(adapters), problems, settings):
        evaluator = evaluator_of(first)
        (reports,) = evaluator.reports("evaluate", [*left], protocol)
        last |= dict(zip(left, reports, strict=True))
        is_last = first == problems
        keep = settings.leaders if is_last else max(settings.leaders, -(-len(left) // 2))
        before, left = left, best(left, last, keep, evaluator.settings.bootstrap)
        log(f"evaluate: {first} problems: {len(left)} of {len(before)} checkpoints are kept")
        if len(left) <= settings.leaders:
            break
    return left, last


def best(adapters: list[Path], found: dict[Path, Report], keep: int, resamples: int) -> list[Path]:
    """Return at most `keep` checkpoints, without those that are surely behind the best one.

    Of equals the earlier is kept.
    """
    ranked = sorted(adapters, key=lambda adapter: -found[adapter]["accuracy"])
    leader = found[ranked[0]]["per_problem"]

    def is_behind(adapter: Path) -> bool:
        own = found[adapter]["per_problem"]
        return bootstrap([leader[name] - own[name] for name in leader], resamples)[0] > 0

    kept = {adapter for adapter in ranked[:keep] if not is_behind(adapter)}
    return [adapter for adapter in adapters if adapter in kept]
