"""Sequences that a policy computes while something runs: the cost of an algorithm in forwards."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from dopsd.models.policy import Policy
from dopsd.training.trainer import Trainer


def forwards(policy: Policy, work: Callable[[], object]) -> int:
    """Run `work`, and return the rows of all its forward passes."""
    real, rows = policy.hidden, []

    def counted(ids, *given, **named):
        rows.append(len(ids))
        return real(ids, *given, **named)

    with mock.patch.object(policy, "hidden", counted):
        work()
    return sum(rows)


def beside_sampling(loop: Trainer) -> int:
    """Rows of a collect's forward passes that are not those of sampling its groups."""
    given, algorithm = (loop.policy, loop.order.of(0), 0), loop.algorithm
    with torch.no_grad():
        sampling = forwards(loop.policy, lambda: algorithm.groups.sample(*given))
        whole = forwards(loop.policy, lambda: algorithm.collect(*given))
    assert sampling > 0
    return whole - sampling
