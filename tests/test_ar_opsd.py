"""AR-style OPSD: the teacher's prompt tells the solution, the student's does not, and both look at the same state."""

from __future__ import annotations

import torch
from conftest import write_params

from dopsd.params import load_params


def first_batch(**changes):
    from accelerate import Accelerator

    from dopsd.stages.train import Loop

    write_params(**changes)
    loop = Loop(load_params().of("ar_opsd"), "sudoku", "ar_opsd", 0, Accelerator(cpu=True))
    loop._collect()
    return loop, loop.waiting[0][0]


def test_the_teacher_is_told_the_solution_and_sees_the_students_state(project):
    loop, batch = first_batch()
    length = batch.candidates.shape[1]
    assert torch.equal(batch.student_ids[:, -length:], batch.teacher_ids[:, -length:])
    solutions = {problem.answer for problem in loop.problems}
    for row, real in zip(batch.teacher_ids, batch.teacher_mask, strict=True):
        told = loop.policy.tokenizer.decode(row[:-length][real[:-length]])
        assert any(f"<answer>{solution}</answer>" in told for solution in solutions)
    assert "<answer>" not in loop.policy.tokenizer.decode(batch.student_ids[0, :-length])
    assert loop.counters["trajectories"] == loop.counters["rollouts"] == 2  # one attempt each, right or wrong
    found = loop.method.loss(loop.policy, batch)
    found.total.backward()
    assert found.total.item() > 0


def test_a_long_prompt_of_the_teacher_keeps_its_end(project):
    _, whole = first_batch()
    _, cut = first_batch(method__ar_opsd__max_teacher_prompt=10)
    length = whole.candidates.shape[1]
    assert cut.teacher_ids.shape[1] == 10 + length
    assert torch.equal(cut.teacher_ids[0, :10], whole.teacher_ids[0, -length - 10 : -length])
