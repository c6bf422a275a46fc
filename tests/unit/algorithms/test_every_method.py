"""What a method owes the trainer: how many updates follow a collect, what divides a loss."""

from __future__ import annotations

import pytest
from test_literal import moved

from dopsd.algorithms.registry import ALGORITHMS

CHANGES = {"trace_rl": {"passes": 3}, "d_opsd": {"denominator": "prompts"}}
BY_PROMPTS = {"d_opsd", "wd1"}  # of them the divisor is the prompts of the collect


@pytest.mark.parametrize("method", ALGORITHMS.names)
def test_updates_of_a_collect_and_the_divisor_of_a_loss(project, method: str):
    """The first decide how long an epoch is, and so the warm-up by `warmup_ratio`."""
    loop = moved(method, **CHANGES.get(method, {}))
    while not loop.waiting:
        loop._collect()
    assert len(loop.waiting) == loop.algorithm.config.updates_of_collect
    batches = [b.with_tensors(weight=b.weight + 1) for b in loop.waiting[0]]
    prompts, weight = loop.settings.prompts_per_collect, sum(float(b.weight.sum()) for b in batches)
    assert prompts != weight
    expected = prompts if method in BY_PROMPTS else weight
    assert loop._weight(batches) == pytest.approx(expected)
