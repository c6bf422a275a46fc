"""Values that cross packages, and the legend of shape letters.

Legend: B rows (rollouts or states), P prompt tokens, Q teacher-prompt tokens, G generation length,
T = P + G, C candidate positions, K target positions, V vocabulary, D hidden width. Prompts are
padded on the left, so that `[..., -G:]` is the completion of every row, whatever the length of its
prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """One item of a task.

    Attributes:
        id: unique within a split.
        prompt: what is asked.
        answer: the gold answer.
        reference: a worked solution, where the task has one.
        extra: values of the task's own, as JSON.
    """

    id: str
    prompt: str
    answer: str
    reference: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def plain(item: object) -> dict[str, Any]:
    """Return the fields of an object as numbers and lists; without those that are None."""
    return {
        name: value if isinstance(value, str | int) else value.tolist()
        for name, value in vars(item).items()
        if value is not None
    }


def unplain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that `plain` described, with tensors in place of lists."""
    import torch

    return {k: torch.tensor(v) if isinstance(v, list) else v for k, v in values.items()}


NEVER = 2**20  # "step" of the tokens after an end of text that no step committed


@dataclass(frozen=True)
class Rollout:
    """A denoising trajectory in two vectors, in main memory.

    The state before step s is where(revealed_at >= s, MASK, completion_ids). Tokens after the block
    in which the text ended were not sampled: their step is NEVER.
    """

    problem_id: str
    attempt: int
    prompt_ids: Tensor  # [P]
    completion_ids: Tensor  # [G]
    revealed_at: Tensor  # [G], step that committed each position
    is_fallback: Tensor | None = None  # [G], committed below the threshold; None: no threshold
    top_ids: Tensor | None = None  # [G, k], likeliest tokens where each was committed; None: unkept
    top_logps: Tensor | None = None  # [G, k+1], ln p of each of them, and of all others

    def to_dict(self) -> dict[str, Any]:
        """Return the rollout as plain numbers, which other processes can read on any device."""
        return plain(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the rollout that `to_dict` described."""
        return cls(**unplain(values))


@dataclass(frozen=True)
class Score:
    """The result of a verifier.

    Attributes:
        answer: the extracted answer, or None.
        score: in [0, 1].
        correct: whether the score is full.
        figures: shares reported in addition to the accuracy: the scores by both rules, and those
            that the task adds.
    """

    answer: str | None
    score: float
    correct: bool
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One cell of an answer that is a grid.

    Attributes:
        start: offset of the cell's text in the answer's text.
        end: offset of its end.
        is_given: whether the problem states it.
        is_right: whether it is as in the gold answer.
    """

    start: int
    end: int
    is_given: bool
    is_right: bool


@dataclass(frozen=True)
class EvalReport:
    """Accuracy of one adapter on one split under one protocol.

    Attributes:
        task: name of the task.
        split: name of the split.
        protocol: settings of the decoding.
        accuracy: mean score of first attempts, in [0, 1].
        interval: 95% interval of `accuracy`.
        n: number of problems.
        whole: share of first attempts with a full score.
        figures: shares that the verifier reports in addition to the score.
        attempts: attempts per problem.
        pass_at_k: mean score of the best of `attempts` attempts.
        pass_at_k_interval: 95% interval of `pass_at_k`.
        per_problem: score of the first attempt, by problem id.
        steps: mean denoising steps of a first attempt; fewer than the protocol's where answers end
            early (`stop_after_eos`) or tokens commit together (`threshold`).
        measured_on: what computed the answers (`dopsd.models.backends`); several entries if
            they were computed on several devices or with several versions.
    """

    task: str
    split: str
    protocol: dict[str, Any]
    accuracy: float
    interval: tuple[float, float]
    n: int
    whole: float
    figures: dict[str, float]
    attempts: int
    pass_at_k: float
    pass_at_k_interval: tuple[float, float]
    per_problem: dict[str, float]
    steps: float
    measured_on: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint folder; `digest` is that of its weights."""

    path: Path
    update: int
    digest: str


Progressed = Callable[[int], None]  # called with the number of newly finished items
