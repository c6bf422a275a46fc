"""Settings of answer infilling."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from dopsd.algorithms.common.config import Forwards, SelfDistillationConfig
from dopsd.core.settings import Count, Share
from dopsd.rollout.config import SamplingConfig


class InfillConfig(SelfDistillationConfig):
    """Settings of answer infilling; the method is this project's.

    The loss has d-OPSD's published defaults, so that only the teacher's knowledge differs.
    """

    attempts: Count = 1  # attempts per problem
    keep: Literal["correct", "all"] = "all"  # all: also train on failed attempts
    reveal_ratio: Share = 0.5  # share of the masked answer that the teacher is shown
    answer: Literal["gold", "sibling", "solver", "other"] = "gold"  # whose answer it is shown
    show: Literal["answer", "future", "both"] = "answer"  # future: the rollout's own, as in d_opsd
    states: Literal["all", "before_answer", "in_answer"] = "all"  # blocks whose states train
    place: Literal["span", "prompt"] = "span"  # prompt: told in the teacher's prompt, none shown
    target: Literal["teacher", "answer"] = "teacher"  # answer: cross-entropy on it, no teacher
    draws: Count = 4  # target answer: random masks of each rollout in an update
    max_teacher_prompt: Count = 400  # place prompt: tokens of the teacher's prompt, the last ones

    @property
    def wants_gold_answers(self) -> bool:
        """Whether the method needs the gold answer of every problem."""
        return self.show != "future" and self.answer in ("gold", "other")

    @property
    def reveals_own_future(self) -> bool:
        """Whether the teacher is shown tokens of the rollout that the student has not reached."""
        return self.reveal_ratio > 0 and self.show != "answer"

    @property
    def reads_later_blocks(self) -> bool:
        """Whether the teacher knows more than the student only by later blocks."""
        return self.place == "span" and self.target == "teacher"

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: its states, or the masks of its answer."""
        if self.target == "answer":
            return Forwards(self.attempts, 0, self.draws * self.updates_per_trajectory)
        return super().forwards(sampling)

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is the teacher."""
        return self.target == "teacher" and super().needs_reference

    @model_validator(mode="after")
    def controls_agree(self) -> Self:
        """Refuse settings of which one would do nothing, or undo another."""
        prompt, target = self.place == "prompt", self.target == "answer"
        faults = {
            "reveal_scope all_masked: only later blocks hold the answer; set future_blocks": (
                self.reveal_scope == "all_masked"
            ),
            "answer sibling needs attempts of at least 2": (
                self.answer == "sibling" and self.attempts == 1
            ),
            "show future shows no answer; leave answer at gold": (
                self.show == "future" and self.answer != "gold"
            ),
            "place prompt shows nothing in the completion; leave show at answer": (
                prompt and self.show != "answer"
            ),
            "target answer has no teacher; leave place at span, show at answer, states at all": (
                target and (prompt or self.show != "answer" or self.states != "all")
            ),
        }
        if found := [fault for fault, holds in faults.items() if holds]:
            raise ValueError(found[0])
        return self
