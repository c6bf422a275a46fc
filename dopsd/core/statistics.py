"""95% intervals of shares, means and differences, and how texts write them in percent."""

import math
from collections.abc import Sequence

from dopsd.core.fingerprint import key_from


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the interval of a share of 0/1 outcomes (Wilson 1927).

    Args:
        successes: number of outcomes that are 1.
        n: number of outcomes, at least 1.
        z: quantile of the normal distribution; the default gives 95%.

    Returns:
        Lower and upper bound, in [0, 1].
    """
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half_width = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


FEW = 0.1  # 0 right of few problems may still mean more than this


def few(n: int, what: str) -> list[str]:
    """Return a line on what so few problems can tell; none where there are enough."""
    high = wilson(0, n)[1] if n else 0.0
    line = f"{n} {what}: the 95% interval of 0 right is [0, {100 * high:.0f}]; use more"
    return [line] if high > FEW else []


def sign_test(better: int, worse: int) -> float:
    """Return the probability of a split at least as uneven where either side is as likely.

    The exact two-sided sign test; for answers that are right or wrong it is McNemar's.

    Args:
        better: number of pairs in which the first is better.
        worse: number of pairs in which the second is; ties do not count.
    """
    changed = better + worse
    tail = sum(math.comb(changed, k) for k in range(min(better, worse) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def bootstrap(values: Sequence[float], resamples: int) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of a mean over problems.

    Args:
        values: one value for each problem; for a paired comparison, the differences.

    Returns:
        Lower and upper bound, in the unit of the values.
    """
    import numpy

    generator = numpy.random.default_rng(key_from("bootstrap", len(values)) & 0xFFFFFFFF)
    samples = numpy.asarray(values)[generator.integers(0, len(values), (resamples, len(values)))]
    low, high = numpy.quantile(samples.mean(1), [0.025, 0.975])
    return float(low), float(high)


def interval_of(scores: Sequence[float], is_graded: bool, resamples: int) -> tuple[float, float]:
    """Return the interval of a mean: Wilson's of 0/1 scores, or a bootstrap of partial ones."""
    return bootstrap(scores, resamples) if is_graded else wilson(round(sum(scores)), len(scores))


def percent(share: float, sign: str = "") -> str:
    """Return a share as a percentage, without the sign `%`: 0.643 as 64.3.

    Args:
        share: between 0 and 1; a difference may be negative.
        sign: `+` also marks positive values.
    """
    return f"{100 * share:{sign}.1f}"


def ends(interval: Sequence[float], sign: str = "") -> str:
    """Return an interval of shares as percentages: [60.1, 68.2]."""
    low, high = interval
    return f"[{percent(low, sign)}, {percent(high, sign)}]"


def within(mean: float, interval: Sequence[float]) -> str:
    """Return a share with its interval as percentages: 64.3 [60.1, 68.2]."""
    return f"{percent(mean)} {ends(interval)}"


def gap(mean: float, interval: Sequence[float]) -> str:
    """Return a difference with its interval as percentages with signs: +4.2 [+1.0, +7.3]."""
    return f"{percent(mean, '+')} {ends(interval, '+')}"


def points(difference: float, interval: Sequence[float]) -> str:
    """Return a difference in percentage points: +10.5 points [+7.9, +13.1]."""
    return f"{percent(difference, '+')} points {ends(interval, '+')}"
