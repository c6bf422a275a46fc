"""What a method owes the trainer: how many updates follow a collect, what divides a loss."""

from __future__ import annotations

import pytest
from test_literal import moved

from dopsd.algorithms.registry import ALGORITHMS

WEIGHTS = {"d3llm", "diffu_grpo", "espo", "just_grpo", "sft", "spg", "trace_rl"}
WEIGHTS |= {"vrpo"}
DIVISORS = {"d_opsd": True, "temporal": True, "wd1": True} | dict.fromkeys(
    WEIGHTS, False
)  # True: the prompts
CHANGES = {"trace_rl": {"passes": 3}, "d_opsd": {"denominator": "prompts"}}


@pytest.mark.parametrize("method", ALGORITHMS.names)
def test_updates_of_a_collect_and_the_divisor_of_a_loss(project, method: str):
    """The first decide how long an epoch is, and so the warm-up by `warmup_ratio`."""
    loop = moved(method, **CHANGES.get(method, {}))
    while not loop.waiting:
        loop.collect()
    assert len(loop.waiting) == loop.algorithm.config.updates_of_collect
    batches = [b.with_tensors(weight=b.weight + 1) for b in loop.waiting[0]]
    prompts, weight = loop.settings.prompts_per_collect, sum(float(b.weight.sum()) for b in batches)
    assert prompts != weight
    by_prompts = loop.algorithm.normalize_by_all_prompts
    assert DIVISORS.get(method, by_prompts) is by_prompts
    expected = prompts if by_prompts else weight
    assert loop._denominator(batches) == pytest.approx(expected)
