"""Accuracy against denoising steps: faster copies of the selecting protocol, and one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from dopsd.core.statistics import bootstrap
from dopsd.rollout.config import EvalProtocol


def curve_protocols(
    name: str, protocol: EvalProtocol, points: Sequence[float]
) -> dict[str, EvalProtocol]:
    """Return the protocols of `evaluate.curve` by name, those with the fewest steps first.

    Args:
        points: from 2 on a divisor of its steps, below 1 a threshold.
    """
    found = {}
    for point in sorted(points, key=lambda p: -p if p > 1 else p):
        steps = protocol.steps / point
        label = f"{name}-threshold{point}" if point < 1 else f"{name}-steps{steps:g}"
        change = {"threshold": point} if point < 1 else {"steps": int(steps)}
        if point > 1 and (protocol.threshold or steps != int(steps)):
            whose = ": those of a threshold" if protocol.threshold else ""
            text = f"evaluate.curve: {point:g} does not divide {protocol.steps} steps{whose}"
            raise ValueError(text)
        try:
            found[label] = EvalProtocol.model_validate(protocol.model_dump() | change)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"evaluate.curve: {point:g}: {reason}") from error
    return found


def area(points: Iterable[tuple[float, float]], most: float) -> float:
    """Return the mean of accuracy over steps from 0 to `most`, in [0, 1].

    Lines join the points, the first with 0 steps and accuracy 0; after the last one accuracy stays.

    Args:
        points: mean steps of an answer, and accuracy.
        most: steps of the protocol with the most.
    """
    ordered = [(0.0, 0.0), *sorted(points)]
    total = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(ordered))
    return (total + (most - ordered[-1][0]) * ordered[-1][1]) / most


def areas_by_problem(reports: Mapping[str, dict[str, Any]], name: str) -> dict[str, float]:
    """Return the area of each problem, whose mean is that of the accuracies; empty without points.

    Args:
        reports: of one model by protocol; the steps of its answers are taken as they are.
        name: the protocol that selects; points with fewer fixed steps are named after it.
    """
    names = [name, *(other for other in reports if other.startswith(f"{name}-steps"))]
    if len(names) == 1:
        return {}
    most = float(reports[name]["protocol"]["steps"])
    points = [(reports[n]["steps"], n) for n in names]
    return {
        problem: area([(s, reports[n]["per_problem"][problem]) for s, n in points], most)
        for problem in reports[name]["per_problem"]
    }


def areas(tested: Mapping[str, dict[str, Any]], name: str, resamples: int) -> dict[str, Any] | None:
    """Return the areas of base and best checkpoint, and their paired difference with its interval.

    The interval is that of the problems.

    Args:
        tested: reports of both by protocol, as test/paired.json has them.

    Returns:
        None without points of fewer steps.
    """
    base, best = (
        areas_by_problem({n: pair[side] for n, pair in tested.items()}, name)
        for side in ("base", "best")
    )
    if not base:
        return None
    gaps = [best[problem] - value for problem, value in base.items()]
    means = {"base": fmean(base.values()), "best": fmean(best.values())}
    return means | {"difference": fmean(gaps), "interval": bootstrap(gaps, resamples)}
