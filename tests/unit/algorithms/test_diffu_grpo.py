"""diffu-GRPO on the tiny model: groups against their mean, masks of the prompt, the loss as the
formula has it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.core.tensors import through_first


def collected(**changes):
    from accelerate import Accelerator

    from dopsd.training.trainer import Trainer

    write_params(**{f"method__diffu_grpo__{key}": value for key, value in changes.items()})
    loop = Trainer(load_params().run("sudoku", "diffu_grpo", 0), Accelerator(cpu=True))
    loop.collect()
    return loop, [batch for (batch,) in loop.waiting]


def test_tokens_count_up_to_the_first_end_of_text():
    tokens = torch.tensor([[1, 0, 2, 0], [1, 2, 3, 4], [0, 0, 0, 0]])
    assert through_first(tokens, 0).tolist() == [
        [True, True, False, False],
        [True] * 4,
        [True, False, False, False],
    ]


def test_advantages_of_a_group_add_up_to_nothing_and_every_iteration_has_its_own_masks(project):
    loop, batches = collected(group_size=3, iterations=2, prompt_mask=0.3)
    assert len(batches) == 2 and len(batches[0]) == 6  # two problems of three completions
    first = batches[0]
    assert first.advantage.view(2, 3).sum(1).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    length, mask_id = first.targets.shape[1], loop.policy.mask_id
    assert (first.ids[:, -length:] == mask_id).all() and not (first.targets == mask_id).any()
    hidden = [(batch.ids[:, :-length] == mask_id) & batch.mask[:, :-length] for batch in batches]
    assert not torch.equal(*hidden) and 0.1 < float(hidden[0].float().mean()) < 0.5
    assert torch.equal(first.old_logps, first.ref_logps)  # the adapter still changes nothing
    assert first.weight.tolist() == first.completion_mask.sum(1).tolist()
    assert loop.counters["trajectories"] == loop.counters["rollouts"] == 6


def test_a_right_or_wrong_reward_gives_part_of_a_solution_nothing(project, monkeypatch):
    """Of a group of three, one solves the puzzle and the others half of it: 1, 0 and 0, mean a
    third.
    """
    from dopsd.core.types import Score
    from dopsd.rollout.collector import RolloutCollector

    sample = RolloutCollector.sample

    def graded(self, *given, **named):
        marks = (Score("a", 0.5, False), Score("b", 1.0, True), Score("c", 0.5, False))
        return [replace(group, scores=marks) for group in sample(self, *given, **named)]

    monkeypatch.setattr(RolloutCollector, "sample", graded)
    _, (batch, *_) = collected(group_size=3, iterations=1, reward="correct")
    assert batch.advantage.tolist() == pytest.approx([-1 / 3, 2 / 3, -1 / 3] * 2)


def test_loss_and_gradient_are_those_of_the_literal_formula(project):
    loop, (batch, *_) = collected(group_size=3, iterations=1)
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.02)  # now neither ratio nor penalty is trivial
    found = loop.algorithm.loss(loop.policy, batch)
    found.total.backward()
    ours = {name: p.grad.clone() for name, p in loop.parameters.items()}
    loop.optimizer.zero_grad()
    length = batch.targets.shape[1]
    logits = loop.policy.head(loop.policy.hidden(batch.ids, batch.mask))[:, -length:]
    total = torch.zeros(())
    for row in range(len(batch)):
        for place in range(length):
            if not batch.completion_mask[row, place]:
                continue
            now = logits[row, place].log_softmax(-1)[batch.targets[row, place]]
            r, a = (now - batch.old_logps[row, place]).exp(), batch.advantage[row]
            gap = batch.ref_logps[row, place] - now
            total = total - min(r * a, r.clamp(0.5, 1.5) * a) + 0.04 * (gap.exp() - gap - 1)
    total.backward()
    assert found.total.item() == pytest.approx(total.item(), abs=5e-6)  # float32, of 150 tokens
    for name, p in loop.parameters.items():
        assert torch.allclose(ours[name], p.grad, rtol=1e-4, atol=1e-6), name


def test_a_row_alone_has_the_log_probabilities_that_it_has_in_its_group(project):
    loop, (batch, *_) = collected(group_size=2, iterations=1)
    alone = [loop.algorithm.loss(loop.policy, part).total.item() for part in batch.split(1)]
    assert sum(alone) == pytest.approx(
        loop.algorithm.loss(loop.policy, batch).total.item(), abs=1e-5
    )
