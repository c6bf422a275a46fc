"""What the teacher of answer infilling is shown, where, and of which states."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import write_params
from fakes import FakePolicy
from test_answer_span import CHARACTERS, completion
from test_literal import collected

from dopsd.algorithms.d_opsd.states import BlockSchedule, reveal, states_by_update
from dopsd.algorithms.d_opsd.teacher import AS_STUDENT, TeacherView, gathered
from dopsd.algorithms.infill.config import InfillConfig
from dopsd.algorithms.infill.lessons import Answers, lesson, lesson_view
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem, Rollout, Score, plain
from dopsd.distributed.process_group import SingleProcess
from dopsd.rollout.collector import RolloutGroup
from dopsd.tasks.countdown.config import CountdownConfig
from dopsd.tasks.countdown.task import Countdown
from dopsd.tasks.sudoku.task import Sudoku

EOS = CHARACTERS.eos_id
MASK = 99
BLOCKS = BlockSchedule(block_length=5, num_transfer_tokens=(5,), mask_id=MASK, eos_id=EOS)
ALL = {"reveal_ratio": 1.0, "drop_remainder": False, "updates_per_trajectory": 1}
PROBLEM = Problem("p", "1", "43")
STEPS = torch.arange(30) // 5


class Reader:
    """Right if the gold answer is in the tags."""

    name, graded = "reader", False

    def verify(self, problem: Problem, text: str) -> Score:
        is_right = f"<answer>{problem.answer}</answer>" in text
        return Score(None, float(is_right), is_right)

    def answer_text(self, problem: Problem) -> str | None:
        return problem.answer or None


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
    found = lesson(policy(), Reader(), problem, rollout(), gold)
    (states,) = states_by_update([rollout()], config, BLOCKS, (0, 0), [lesson_view(found, config)])
    is_shown = states.teacher_ids != states.student_ids
    rows = states.teacher_ids.masked_fill(~is_shown, MASK)[:, 1:].tolist()
    return ["".join(map(character, row)) for row in rows]


def character(token: int) -> str:
    return {MASK: ".", EOS: "_"}.get(token) or CHARACTERS.decode(torch.tensor([token]))


@pytest.mark.parametrize(
    ("gold", "rows"),  # one row a block that is denoised: a<ans wer>1 2</an swer> _____
    [
        ("43", [".........43...................", "..........3..................."]),
        (
            "4",
            [
                ".........4</answer>...........",
                "..........</answer>...........",  # the student has `12</a` in the next state
            ],
        ),
        ("4321", [".........4321</answer>........", "..........321</answer>........"]),
    ],
)
def test_the_teacher_is_shown_the_answer_in_later_blocks_only(gold, rows):
    assert shown(gold) == rows + ["." * 30] * (5 - len(rows))


def test_a_tail_that_was_built_again_is_hidden_once_the_student_began_to_answer():
    """Two steps a block; the answer starts at 9, the end of block 1, and is committed first."""
    steps = torch.arange(30) // 5 * 2 + torch.tensor([1, 1, 1, 0, 0]).repeat(6)
    blocks = replace(BLOCKS, num_transfer_tokens=(2, 3))
    for gold, expected in (("43", [1, 1]), ("4", [9, 0])):  # 3, or </answer>
        problem, config = replace(PROBLEM, answer=gold), InfillConfig(**ALL)
        found = lesson(policy(), Reader(), problem, rollout(), gold)
        run, seen = replace(rollout(), revealed_at=steps), lesson_view(found, config)
        shown_at = reveal(run, [2, 3], config, blocks, 0, seen)
        assert shown_at.sum(1).tolist() == expected


def test_a_short_answer_is_shown_a_token_at_least():
    assert sum(c != "." for c in shown("43", reveal_ratio=0.4)[0]) == 1  # int(0.4 x 2) is 0
    assert shown("43", reveal_ratio=0.0) == ["." * 30] * 5


def test_a_rollout_without_a_usable_span_is_dropped():
    def is_used(text: str, gold: str = "43") -> bool:
        problem = replace(PROBLEM, answer=gold)
        return lesson(policy(), Reader(), problem, rollout(text), gold) is not None

    assert is_used("a<answer>12</answer>") and not is_used("a<answer>12")
    assert not is_used("<answer>\\boxed{1}</answer>")  # the verifier reads the tags, not the box
    assert not is_used("a<answer>12</answer>", "1234567890123")


def test_a_sibling_is_the_first_right_attempt_and_a_solver_the_tasks():
    group = RolloutGroup(
        replace(PROBLEM, answer="7"),
        (rollout(), rollout("<answer>6</answer>", 1), rollout("<answer>7</answer>", 2)),
        tuple(Score(None, float(right), right) for right in (False, False, True)),
    )
    sibling = Answers(InfillConfig(answer="sibling", attempts=3), Countdown(CountdownConfig()))
    assert sibling.of(policy(), group) == "7"
    wrong = replace(group, scores=group.scores[:2] + group.scores[:1])
    assert sibling.of(policy(), wrong) is None

    class Solver(Reader):
        def solver_answer(self, problem: Problem) -> str | None:
            return "3+4"

    assert Answers(InfillConfig(answer="solver"), Solver()).of(policy(), group) == "3+4"


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
    with pytest.raises(DopsdError, match="gold: task countdown has no one gold answer"):
        Answers(InfillConfig(), countdown)
    with pytest.raises(DopsdError, match="solver: task reader has no solver"):
        Answers(InfillConfig(answer="solver"), Reader())


def test_a_view_survives_its_way_to_another_process():
    given = TeacherView(torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([True, False]), 1, 2)
    (run, _), (view, own) = gathered(SingleProcess(), [rollout()] * 2, [given, AS_STUDENT])
    assert own == AS_STUDENT and run.completion_ids.tolist() == rollout().completion_ids.tolist()
    assert view.showable.dtype == torch.bool and plain(view) == plain(given)


class Last(Reader):
    """Right if the gold answer is in the last tags."""

    def verify(self, problem: Problem, text: str) -> Score:
        return super().verify(problem, text[text.rindex("<answer>") :])


def test_a_place_before_the_one_that_is_scored_is_dropped():
    twice = rollout("<answer>12</answer><|endoftext|><answer>9")
    given = policy(), Last(), PROBLEM, twice, "43"
    assert lesson(*given) is not None and lesson(*given, after_eos=True) is None


def test_whole_completions_are_checked_where_they_are_scored(project, monkeypatch):
    read: list[str] = []
    verify = Sudoku.verify
    monkeypatch.setattr(Sudoku, "verify", lambda *to: read.append(to[-1]) or verify(*to))
    loop, _ = collected("infill", False, sampling__text_after_eos=True)
    assert len(read) > loop.counters["rollouts"]  # and those with a right answer
    tokens = loop.policy.tokenizer  # of special tokens too
    assert {len(tokens(text, add_special_tokens=False)["input_ids"]) for text in read} == {40}
