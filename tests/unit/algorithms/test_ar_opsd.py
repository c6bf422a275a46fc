"""AR-style OPSD: the teacher's prompt tells the solution; both look at the same state."""

from __future__ import annotations

import pytest
import torch
from test_literal import collected

from dopsd.core.errors import DopsdError


def test_the_teacher_is_shown_the_solution_and_sees_the_students_state(project):
    loop, batch = collected("ar_opsd", False)
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
    # one attempt each, right or wrong
    assert loop.counters["trajectories"] == loop.counters["rollouts"] == 2
    found = loop.algorithm.loss(loop.policy, batch)
    found.total.backward()
    assert found.total.item() > 0


def test_a_teacher_that_reads_more_than_the_model_was_trained_for_is_refused(project):
    loop, _ = collected("ar_opsd", False)
    loop.policy.max_length = 60
    with pytest.raises(DopsdError, match=r"max_teacher_prompt: .* of 40 .* has room for 20"):
        loop.collect()


def test_a_long_prompt_of_the_teacher_keeps_its_end(project, capsys):
    _, whole = collected("ar_opsd", False)
    _, cut = collected("ar_opsd", False, max_teacher_prompt=10)
    assert "prompts are cut to their last 10 tokens" in capsys.readouterr().err
    length = whole.candidates.shape[1]
    assert cut.teacher_ids.shape[1] == 10 + length
    assert torch.equal(cut.teacher_ids[0, :10], whole.teacher_ids[0, -length - 10 : -length])
