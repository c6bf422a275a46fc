"""Supervised fine-tuning: solutions of the task or of a file, padding included, masked anew in every batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import write_params

from dopsd.errors import DopsdError
from dopsd.masking import Text, masked
from dopsd.params import load_params
from dopsd.solutions import padded, solution
from dopsd.types import Problem


def collected(**changes):
    from accelerate import Accelerator

    from dopsd.stages.train import Loop

    write_params(**{f"method__sft__{key}": value for key, value in changes.items()})
    loop = Loop(load_params().of("sft"), "sudoku", "sft", 0, Accelerator(cpu=True))
    loop._collect()
    return loop, loop.waiting[0][0]


def test_the_tasks_own_solutions_are_learnt_with_their_padding(project):
    loop, batch = collected()
    texts = [loop.policy.decode(row) for row in batch.targets]
    problems = {problem.answer: problem for problem in loop.problems}
    for text in texts:
        assert loop.task.verify(problems[text.split("<answer>")[1].split("</answer>")[0]], text).correct
    assert batch.targets.shape == (2, 40) and (batch.targets[:, -1] == loop.policy.eos_id).all()
    assert loop.counters["rollouts"] == 0 and loop.counters["trajectories"] == 2


def test_rows_of_a_file_are_asked_and_answered_as_they_stand(project):
    rows = [{"question": "12", "response": "3412"}, {"question": "3", "response": "1" * 50}]
    Path("traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loop, batch = collected(traces={"path": "traces.jsonl"}, length=8)
    assert {loop.policy.decode(row) for row in batch.targets} == {"3412"}  # the other is longer than 8 tokens
    assert batch.targets.shape[1] == 8
    with pytest.raises(DopsdError, match="none of 2 responses has at most 2 tokens"):
        collected(traces={"path": "traces.jsonl"}, length=2)


def test_a_problem_without_a_solution_is_refused_by_name():
    class Bare:
        name = "countdown"

    with pytest.raises(DopsdError, match="sft: countdown problem c-1 has no reference solution"):
        solution(Bare(), Problem("c-1", "1 2", "3"), "sft")
    assert solution(Bare(), Problem("c-1", "1 2", "3", "one and two"), "sft") == "one and two"


def test_masks_are_those_of_the_text_whatever_stands_beside_it(fake_policy):
    one = Text(torch.tensor([1, 2]), torch.tensor([3, 4, 5, 6]), key=7)
    other = Text(torch.tensor([1, 2, 3, 4]), torch.tensor([6, 5, 4, 3]), key=8, weight=0.5)
    alone, beside = masked(fake_policy, [one]), masked(fake_policy, [one, other])
    assert torch.equal(alone.predicted[0], beside.predicted[0]) and alone.token_weight[0] == beside.token_weight[0]
    assert (beside.ids[:, -4:] == fake_policy.mask_id).equal(beside.predicted) and beside.weight.tolist() == [1.0, 0.5]


def test_padding_fills_and_cuts():
    assert padded(torch.tensor([1, 2]), 4, 9).tolist() == [1, 2, 9, 9]
    assert padded(torch.tensor([1, 2, 3]), 2, 9).tolist() == [1, 2]
