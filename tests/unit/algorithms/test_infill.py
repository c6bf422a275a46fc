"""What the teacher of answer infilling is shown, where, and of which states."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import write_params
from fakes import FakePolicy
from pydantic import ValidationError
from test_answer_span import CHARACTERS, completion
from test_literal import collected

from dopsd.algorithms.common.masking import Text, masked
from dopsd.algorithms.d_opsd.states import BlockSchedule, recorded_steps, reveal, states_by_update
from dopsd.algorithms.d_opsd.teacher import AS_STUDENT, TeacherView
from dopsd.algorithms.infill.config import InfillConfig
from dopsd.algorithms.infill.lessons import Answers, Known, lesson, view
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem, Rollout, Score
from dopsd.rollout.answer_span import answer_span
from dopsd.rollout.collector import RolloutGroup
from dopsd.tasks.countdown.config import CountdownConfig
from dopsd.tasks.countdown.task import Countdown

EOS = CHARACTERS.eos_id
MASK = 99
BLOCKS = BlockSchedule(block_length=5, num_transfer_tokens=(5,), mask_id=MASK, eos_id=EOS)
ALL = {"reveal_ratio": 1.0, "drop_remainder": False, "updates_per_trajectory": 1}
PROBLEM = Problem("p", "1", "43")
STEPS = torch.arange(30) // 5


class Reader:
    """Right if the gold answer is in the tags."""

    name, graded = "reader", False

    def __init__(self, *golds: str) -> None:
        self.golds = golds

    def verify(self, problem: Problem, text: str) -> Score:
        is_right = f"<answer>{problem.answer}</answer>" in text
        return Score(None, float(is_right), is_right)

    def answer_text(self, problem: Problem) -> str | None:
        return problem.answer or None

    def load(self, split: str) -> list[Problem]:
        return [Problem(gold, "1", gold) for gold in self.golds]


def policy() -> FakePolicy:
    fake = FakePolicy(30)
    fake.text, fake.eos_id, fake.mask_id = CHARACTERS, EOS, MASK
    return fake


def rollout(text: str = "a<answer>12</answer>", attempt: int = 0) -> Rollout:
    """Six blocks of five tokens, each committed in one step; the answer is tokens 9 and 10."""
    return Rollout("p", attempt, torch.tensor([1]), completion(CHARACTERS, text, 30), STEPS)


def shown(gold: str, **changes) -> list[str]:
    """What the teacher is shown of each block's state: `.` is a mask, and what is left is text."""
    config, problem = InfillConfig(**ALL | changes), replace(PROBLEM, answer=gold)
    found = lesson(policy(), Reader(), problem, rollout(), Known(gold, gold))
    (states,) = states_by_update([rollout()], config, BLOCKS, (0, 0), [view(found, config, BLOCKS)])
    is_shown = states.teacher_ids != states.student_ids
    rows = states.teacher_ids.masked_fill(~is_shown, MASK)[:, 1:].tolist()
    return ["".join(map(character, row)) for row in rows]


def character(token: int) -> str:
    return {MASK: ".", EOS: "_"}.get(token) or CHARACTERS.decode(torch.tensor([token]))


@pytest.mark.parametrize(
    ("changes", "gold", "rows"),  # one row a block that is denoised: a<ans wer>1 2</an swer> _____
    [
        ({}, "43", [".........43...................", "..........3..................."]),
        (
            {},
            "4",
            [
                ".........4</answer>...........",
                "..........</answer>...........",  # the student has `12</a` in the next state
            ],
        ),
        ({}, "4321", [".........4321</answer>........", "..........321</answer>........"]),
        (
            {"show": "both"},
            "4",
            [".....wer>4</answer>___________", "..........</answer>___________"],
        ),
        (
            {"show": "both"},
            "43",
            [
                ".....wer>43</answer>__________",
                "..........3</answer>__________",
                "...............swer>__________",
            ],
        ),
        ({"states": "before_answer"}, "43", [".........43..................."]),
        ({"states": "in_answer"}, "43", ["..........3..................."]),
        ({"place": "prompt"}, "43", []),
    ],
)
def test_the_teacher_is_shown_the_answer_in_later_blocks_only(changes, gold, rows):
    found = shown(gold, **changes)
    blank = {"before_answer": 1, "in_answer": 2}.get(changes.get("states"), 5)
    assert found == rows + ["." * 30] * (blank - len(rows))


def test_a_tail_that_was_built_again_is_hidden_once_the_student_began_to_answer():
    """Two steps a block; the answer starts at 9, the end of block 1, and is committed first."""
    steps = torch.arange(30) // 5 * 2 + torch.tensor([1, 1, 1, 0, 0]).repeat(6)
    blocks = replace(BLOCKS, num_transfer_tokens=(2, 3))
    for gold, expected in (("43", [1, 1]), ("4", [9, 0])):  # 3, or </answer>
        problem, config = replace(PROBLEM, answer=gold), InfillConfig(**ALL)
        found = lesson(policy(), Reader(), problem, rollout(), Known(gold, gold))
        run, seen = replace(rollout(), revealed_at=steps), view(found, config, BLOCKS)
        shown_at = reveal(run, [2, 3], config, blocks, 0, seen)
        assert shown_at.sum(1).tolist() == expected


def test_a_short_answer_is_shown_a_token_at_least():
    assert sum(c != "." for c in shown("43", reveal_ratio=0.4)[0]) == 1  # int(0.4 x 2) is 0
    assert shown("43", reveal_ratio=0.0) == ["." * 30] * 5


def test_states_before_in_and_after_the_answer_are_all_states():
    known = Known("43", "43")
    found = lesson(policy(), Reader(), PROBLEM, rollout(), known)
    steps = {
        kind: recorded_steps(rollout(), config, BLOCKS, view(found, config, BLOCKS))
        for kind in ("all", "before_answer", "in_answer")
        for config in [InfillConfig(states=kind)]
    }
    assert steps == {"all": [0, 1, 2, 3, 4], "before_answer": [0], "in_answer": [1, 2]}


def test_a_rollout_without_a_usable_span_is_dropped():
    def is_used(text: str, gold: str = "43", shown: str = "43") -> bool:
        problem = replace(PROBLEM, answer=gold)
        known = Known(gold, shown)
        return lesson(policy(), Reader(), problem, rollout(text), known) is not None

    assert is_used("a<answer>12</answer>") and not is_used("a<answer>12")
    assert not is_used("<answer>\\boxed{1}</answer>")  # the verifier reads the tags, not the box
    assert not is_used("a<answer>12</answer>", "1234567890123")
    assert is_used("a<answer>12</answer>", shown="5")
    assert not is_used("a<answer>12</answer>", shown="1234567890123")


def test_another_problems_answer_is_drawn_by_key_and_never_the_own():
    answers = Answers(InfillConfig(answer="other"), Reader("43", "43", "12", "7"), 0)
    group = RolloutGroup(PROBLEM, (rollout(),), (Score(None, 0.0, False),))
    drawn = [answers.of(policy(), group, update) for update in range(20)]
    assert {(known.verified, known.shown) for known in drawn} == {("43", "12"), ("43", "7")}
    assert drawn == [answers.of(policy(), group, update) for update in range(20)]
    assert Answers(InfillConfig(answer="other"), Reader("43"), 0).of(policy(), group, 0) is None


def test_a_sibling_is_the_first_right_attempt_and_a_solver_the_tasks():
    group = RolloutGroup(
        replace(PROBLEM, answer="7"),
        (rollout(), rollout("<answer>6</answer>", 1), rollout("<answer>7</answer>", 2)),
        tuple(Score(None, float(right), right) for right in (False, False, True)),
    )
    sibling = Answers(InfillConfig(answer="sibling", attempts=3), Countdown(CountdownConfig()), 0)
    assert sibling.of(policy(), group, 0) == Known("7", "7")
    wrong = replace(group, scores=group.scores[:2] + group.scores[:1])
    assert sibling.of(policy(), wrong, 0) is None

    class Solver(Reader):
        def solver_answer(self, problem: Problem) -> str | None:
            return "3+4"

    assert Answers(InfillConfig(answer="solver"), Solver(), 0).of(policy(), group, 0).shown == "3+4"


def test_only_the_answer_is_predicted_and_what_follows_is_hidden():
    ids = rollout().completion_ids
    span = answer_span(CHARACTERS, ids, EOS)
    batch = masked(policy(), [Text(ids[:2], ids, key, span=(span.start, 11)) for key in range(40)])
    hidden = batch.ids[:, 2:] == MASK
    assert hidden[:, 11:].all() and not hidden[:, :9].any()
    assert torch.equal(batch.loss_mask[:, 9:11], hidden[:, 9:11]) and batch.loss_mask.any()
    assert not batch.loss_mask[:, :9].any() and not batch.loss_mask[:, 11:].any()
    plain = masked(policy(), [Text(ids[:2], ids, key) for key in range(40)])
    assert torch.allclose(batch.token_weight, 15 * plain.token_weight)  # 30 tokens / 2


def first_updates(method: str, **changes):
    loop, _ = collected(method, False, **changes)
    return [batch for update in loop.waiting for batch in update]


def test_the_own_future_is_d_opsd_on_every_rollout(project):
    common = {"attempts": 1, "keep": "all", "updates_per_trajectory": 3}
    infill = first_updates("infill", show="future", **common)
    plain = first_updates("d_opsd", **common)
    assert len(infill) == len(plain) == 3
    for a, b in zip(infill, plain, strict=True):
        for name, value in a.tensors().items():
            assert torch.equal(value, b.tensors()[name]), name


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"reveal_scope": "all_masked"}, "only later blocks hold the answer"),
        ({"answer": "sibling"}, "attempts of at least 2"),
        ({"show": "future", "answer": "other"}, "leave answer at gold"),
        ({"place": "prompt", "show": "both"}, "leave show at answer"),
        ({"target": "answer", "states": "in_answer"}, "target answer has no teacher"),
        ({"target": "answer", "place": "prompt"}, "target answer has no teacher"),
        ({"least_shift": 0.1, "place": "prompt"}, "leave place at span"),
        ({"least_shift": 0.1}, "needs denominator kept"),
        ({"least_shift": 0.1, "denominator": "kept", "attempts": 9}, "at least attempts"),
        ({"least_shift": 0.1, "denominator": "kept", "retry_temperature": 0.1}, "one temperature"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, fault):
    with pytest.raises(ValidationError, match=fault):
        InfillConfig(**changes)


def test_a_task_without_the_answer_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    matrix = {"matrix__tasks": ["countdown"], "matrix__methods": ["infill"]}
    write_params(**matrix)
    assert main(["check"]) == 2
    error = capsys.readouterr().err
    assert "method.infill: needs one gold answer of a problem, and countdown has none" in error
    write_params(**matrix, method__infill__answer="sibling", method__infill__attempts=4)
    assert load_params().method.infill.attempts == 4
    countdown = Countdown(CountdownConfig())
    for kind, lacking in (("gold", "one gold answer"), ("other", "one gold answer")):
        with pytest.raises(DopsdError, match=f"{kind}: task countdown has no {lacking}"):
            Answers(InfillConfig(answer=kind), countdown, 0)
    with pytest.raises(DopsdError, match="solver: task reader has no solver"):
        Answers(InfillConfig(answer="solver"), Reader(), 0)


def test_a_view_survives_its_way_to_another_process():
    given = TeacherView(torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([True, False]), 1, 2)
    assert TeacherView.from_dict(given.to_dict()).to_dict() == given.to_dict()
    assert TeacherView.from_dict(given.to_dict()).showable.dtype == torch.bool
    assert TeacherView.from_dict(AS_STUDENT.to_dict()) == AS_STUDENT
