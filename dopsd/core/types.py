"""Values that cross packages, and the one legend of shape letters.

Legend: B rows (rollouts or states), P prompt tokens, Q teacher-prompt tokens, G generation length,
T = P + G, C candidate positions, K target positions, V vocabulary, D hidden width. Prompts are
padded on the left, so that `[..., -G:]` is the completion of every row, whatever its prompt's
length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """One task item: what is asked, the gold answer, and a reference solution where the task has
    one.
    """

    id: str
    prompt: str
    answer: str
    reference: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """A denoising trajectory in two vectors: the state before step s is where(revealed_at >= s,
    MASK, ids).
    """

    problem_id: str
    attempt: int
    prompt_ids: Tensor  # [P]
    completion_ids: Tensor  # [G]
    revealed_at: Tensor  # [G], the step that committed each position

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, which other processes can read whatever their device."""
        return {
            name: value if isinstance(value, str | int) else value.tolist()
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], device: torch.device) -> Self:
        """Return the rollout that `to_dict` described, on `device`."""
        import torch

        fields: dict[str, Any] = {
            k: torch.tensor(v, device=device) if isinstance(v, list) else v
            for k, v in values.items()
        }
        return cls(**fields)


@dataclass(frozen=True)
class Score:
    """What a verifier found: the extracted answer, its score in [0, 1], and whether that is full
    marks.

    `figures` are shares that are reported beside the accuracy: the scores by both rules, and what
    the task adds.
    """

    answer: str | None
    score: float
    correct: bool
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalReport:
    """Accuracy (of first attempts) of one adapter on one split under one protocol, with its 95%
    interval, in [0, 1].

    `whole` is the share of full marks, `figures` what the verifier reports beside the score,
    `pass_at_k` the accuracy of the best of `attempts`.
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


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint folder; `digest` is that of its adapter weights."""

    path: Path
    update: int
    digest: str


Progressed = Callable[[int], None]
