"""Sequences that a policy computes while something runs: the cost of an algorithm in forwards."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

from dopsd.models.policy import Policy


def forwards(policy: Policy, work: Callable[[], object]) -> int:
    """Run `work`, and return the rows of all its forward passes."""
    real, rows = policy.hidden, []

    def counted(ids, *given, **named):
        rows.append(len(ids))
        return real(ids, *given, **named)

    with mock.patch.object(policy, "hidden", counted):
        work()
    return sum(rows)
