"""Shares as percent: one digit, signs only where they are differences."""

from __future__ import annotations

from dopsd.core.statistics import gap, percent, points, within


def test_shares_and_differences_as_text():
    assert percent(0.6434) == "64.3" and percent(-0.005, "+") == "-0.5"
    assert within(0.643, (0.601, 0.682)) == "64.3 [60.1, 68.2]"
    assert gap(0.105, [-0.01, 0.131]) == "+10.5 [-1.0, +13.1]"
    assert points(0.0, [0.0, 0.02]) == "+0.0 points [+0.0, +2.0]"
