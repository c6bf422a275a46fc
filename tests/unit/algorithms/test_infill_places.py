"""The place of an answer is checked in the text that is scored."""

from __future__ import annotations

from test_infill import PROBLEM, Reader, policy, rollout
from test_literal import collected

from dopsd.algorithms.infill.lessons import lesson
from dopsd.core.types import Problem, Score
from dopsd.tasks.sudoku.task import Sudoku


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
