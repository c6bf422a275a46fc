"""What a method owes the trainer: how many updates follow a collect, what divides a loss."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from test_literal import collected, moved

from dopsd.algorithms.registry import ALGORITHMS

WEIGHTS = {"d3llm", "diffu_grpo", "espo", "just_grpo", "sft", "spg", "trace_rl"}
WEIGHTS |= {"vrpo"}
DIVISORS = {"d_opsd": True, "temporal": True, "wd1": True} | dict.fromkeys(
    WEIGHTS, False
)  # True: the prompts
SHIFT = {"least_shift": 0.1, "denominator": "kept"}
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


LEARN = {
    "d_opsd": {"keep": "all", "record_last_block": True, "attempts": 1},
    "ar_opsd": {"record_last_block": True},
    "infill": {},
    "rft": {"keep": "all"},
    "temporal": {"weight": "none", "states": 0},
    "trace_rl": {"least_mean_reward": -9.0, "most_mean_reward": 9.0},
}


@pytest.mark.parametrize("method", LEARN)
def test_methods_that_need_the_trace_alone_learn_from_rollouts_by_threshold(project, method: str):
    loop, batch = collected(method, sampling__threshold=0.5, **LEARN[method])
    total = loop.algorithm.loss(loop.policy, batch).total
    assert torch.isfinite(total) and total != 0
    if method == "d_opsd":  # each token is committed, and so trained, once
        batches = [b for part in loop.waiting for b in part]
        assert all(torch.equal(b.k, b.committed.sum(1)) for b in batches)
        assert max(int(b.k.max()) for b in batches) > 2  # what two tokens a step never give


@pytest.mark.parametrize(
    ("method", "settings", "fault"),
    [
        ("espo", {"full_mask": True}, "set objective to token"),
        ("espo", {"objective": "squared", "clip_range": 0.0}, "a clip_range between 0 and 1"),
        ("infill", {"reveal_scope": "all_masked"}, "only later blocks hold the answer"),
        ("infill", {"answer": "sibling"}, "attempts of at least 2"),
        ("infill", {"least_shift": 0.1}, "needs denominator kept"),
        ("infill", SHIFT | {"attempts": 9}, "at least attempts"),
        ("infill", SHIFT | {"retry_temperature": 0.1}, "one temperature"),
        ("just_grpo", {"positions": "fallback"}, "positions fallback and threshold need each"),
        ("just_grpo", {"threshold": 0.8}, "positions fallback and threshold need each"),
        ("trace_rl", {"least_mean_reward": 0.5, "most_mean_reward": 0.4}, "must be at least"),
        ("trace_rl", {"reduction": "token"}, "set kl_reduction to mean"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(method: str, settings: dict, fault: str):
    with pytest.raises(ValidationError, match=fault):
        ALGORITHMS.config_class(method)(**settings)
