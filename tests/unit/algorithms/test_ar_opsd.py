"""AR-style OPSD: the teacher's prompt tells the solution, the student's does not, and both look at
the same state.
"""

from __future__ import annotations

import pytest
import torch
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError


def first_batch(**changes):
    from accelerate import Accelerator

    from dopsd.training.trainer import Trainer

    write_params(**changes)
    loop = Trainer(load_params().run("sudoku", "ar_opsd", 0), Accelerator(cpu=True))
    loop.collect()
    return loop, loop.waiting[0][0]


def test_the_teacher_is_shown_the_solution_and_sees_the_students_state(project):
    loop, batch = first_batch()
    length = batch.candidates.shape[1]
    assert torch.equal(batch.student_ids[:, -length:], batch.teacher_ids[:, -length:])
    answers = {problem.prompt: problem.answer for problem in loop.problems}
    for row, real, own in zip(
        batch.teacher_ids, batch.teacher_mask, batch.student_ids, strict=True
    ):
        told = loop.policy.tokenizer.decode(row[:-length][real[:-length]])
        asked = loop.policy.tokenizer.decode(own[:-length])
        (puzzle,) = (prompt for prompt in answers if prompt in asked)
        assert puzzle in told and f"<answer>{answers[puzzle]}</answer>" in told
    assert "<answer>" not in loop.policy.tokenizer.decode(batch.student_ids[0, :-length])
    assert (
        loop.counters["trajectories"] == loop.counters["rollouts"] == 2
    )  # one attempt each, right or wrong
    found = loop.algorithm.loss(loop.policy, batch)
    found.total.backward()
    assert found.total.item() > 0


def test_a_teacher_that_reads_more_than_the_model_was_trained_for_is_refused(project):
    loop, _ = first_batch()
    loop.policy.max_length = 60
    with pytest.raises(
        DopsdError,
        match=r"max_teacher_prompt: .* with an answer of 40 the model has room for 20",
    ):
        loop.collect()


def test_a_long_prompt_of_the_teacher_keeps_its_end(project, capsys):
    _, whole = first_batch()
    _, cut = first_batch(method__ar_opsd__max_teacher_prompt=10)
    assert (
        "ar_opsd: some of the teacher's prompts are cut to their last 10 tokens"
        in capsys.readouterr().err
    )
    length = whole.candidates.shape[1]
    assert cut.teacher_ids.shape[1] == 10 + length
    assert torch.equal(cut.teacher_ids[0, :10], whole.teacher_ids[0, -length - 10 : -length])
