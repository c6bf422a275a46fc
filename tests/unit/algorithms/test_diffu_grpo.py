"""diffu-GRPO's groups and masks of the prompt; its loss is in test_literal.py."""

from __future__ import annotations

import pytest
import torch
from test_literal import collected, graded

from dopsd.core.tensors import through_first


def test_tokens_count_up_to_the_first_end_of_text():
    tokens = torch.tensor([[1, 0, 2, 0], [1, 2, 3, 4], [0, 0, 0, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert through_first(tokens, 0).int().tolist() == expected


def test_advantages_of_a_group_add_up_to_nothing_and_every_iteration_has_its_own_masks(project):
    loop, first = collected("diffu_grpo", False, group_size=3, iterations=2, prompt_mask=0.3)
    batches = [batch for (batch,) in loop.waiting]
    assert len(batches) == 2 and len(batches[0]) == 6  # two problems of three completions
    assert first.advantage.view(2, 3).sum(1).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    length, mask_id = first.targets.shape[1], loop.policy.mask_id
    assert (first.ids[:, -length:] == mask_id).all() and not (first.targets == mask_id).any()
    hidden = [(batch.ids[:, :-length] == mask_id) & batch.mask[:, :-length] for batch in batches]
    assert not torch.equal(*hidden) and 0.1 < float(hidden[0].float().mean()) < 0.5
    assert torch.equal(first.old_logps, first.ref_logps)  # the adapter still changes nothing
    assert first.weight.tolist() == first.completion_mask.sum(1).tolist()
    assert loop.counters["trajectories"] == loop.counters["rollouts"] == 6


def test_a_right_or_wrong_reward_gives_part_of_a_solution_nothing(project, monkeypatch):
    """One of three solves the puzzle, the others half of it: 1, 0 and 0, mean a third."""
    graded(monkeypatch, [0.5, 1.0, 0.5])
    _, batch = collected("diffu_grpo", False, group_size=3, iterations=1, reward="correct")
    assert batch.advantage.tolist() == pytest.approx([-1 / 3, 2 / 3, -1 / 3] * 2)
