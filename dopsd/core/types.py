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
    """One item of a task."""

    id: str  # unique within a split
    prompt: str  # what is asked
    answer: str  # the gold answer
    reference: str | None = None  # a worked solution, where the task has one
    extra: dict[str, Any] = field(default_factory=dict)  # values of the task's own, as JSON


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
    """The result of a verifier."""

    answer: str | None  # the extracted answer, or None
    score: float  # in [0, 1]
    correct: bool  # whether the score is full
    # shares reported in addition to the accuracy: the scores by both rules, and those that the task
    # adds
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One cell of an answer that is a grid."""

    start: int  # offset of the cell's text in the answer's text
    end: int  # offset of its end
    is_given: bool  # whether the problem states it
    is_right: bool  # whether it is as in the gold answer


@dataclass(frozen=True)
class EvalReport:
    """Accuracy of one adapter on one split under one protocol."""

    task: str  # name of the task
    split: str  # name of the split
    protocol: dict[str, Any]  # settings of the decoding
    accuracy: float  # mean score of first attempts, in [0, 1]
    interval: tuple[float, float]  # 95% interval of `accuracy`
    n: int  # number of problems
    whole: float  # share of first attempts with a full score
    figures: dict[str, float]  # shares that the verifier reports in addition to the score
    attempts: int  # attempts per problem
    pass_at_k: float  # mean score of the best of `attempts` attempts
    pass_at_k_interval: tuple[float, float]  # 95% interval of `pass_at_k`
    per_problem: dict[str, float]  # score of the first attempt, by problem id
    # mean denoising steps of a first attempt; fewer than the protocol's where answers end early
    # (`stop_after_eos`) or tokens commit together (`threshold`)
    steps: float
    # what computed the answers (`dopsd.models.backends`); several entries if they were computed on
    # several devices or with several versions
    measured_on: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint folder; `digest` is that of its weights."""

    path: Path
    update: int
    digest: str


Progressed = Callable[[int], None]  # called with the number of newly finished items
