"""When work that goes on step by step counts as stalled."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMES = 10  # the median time of a step
FLOOR = 60.0  # seconds: a short pause is no stall, however fast the steps are
FEWEST = 5  # steps from which on their times are known
UNKNOWN = 3600.0  # seconds, with fewer steps: the first one also loads and compiles


def stalled_after(seconds: Sequence[float]) -> float:
    """Return the seconds without a step after which work counts as stalled.

    That is ten times the median, and more than twice the longest step so far: a collect of rollouts
    or a save takes as long as many updates.

    Args:
        seconds: times of the last steps.
    """
    if len(seconds) < FEWEST:
        return UNKNOWN
    return max(FLOOR, TIMES * median(seconds), 2 * max(seconds))
