"""Write shares as percent: 0.643 as 64.3, with intervals, and differences with signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
