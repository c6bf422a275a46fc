"""Values that cross rooms, the protocols that rooms stand on, and the one legend of shape letters.

Legend: B rows (rollouts or states), P prompt tokens, Q teacher-prompt tokens, G generation length, T = P + G,
C candidate positions, K target positions, V vocabulary, D hidden width. Prompts are padded on the left, so that
`[..., -G:]` is the completion of every row, whatever its prompt's length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.batches import Batch


@dataclass(frozen=True)
class Problem:
    """One task item: what is asked, the gold answer, and a reference solution where the task has one."""

    id: str
    prompt: str
    answer: str
    reference: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """A denoising trajectory in two vectors: the state before step s is where(revealed_at >= s, MASK, ids)."""

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
    def from_dict(cls, values: dict[str, Any], device: Any) -> Self:
        """Return the rollout that `to_dict` described, on `device`."""
        import torch

        return cls(
            **{
                k: torch.tensor(v, device=device) if isinstance(v, list) else v
                for k, v in values.items()
            }
        )


@dataclass(frozen=True)
class Score:
    """What a verifier found: the extracted answer, its score in [0, 1], and whether that is full marks.

    `figures` are shares that are reported beside the accuracy: the scores by both rules, and what the task adds.
    """

    answer: str | None
    score: float
    correct: bool
    figures: dict[str, float] = field(default_factory=dict)


class MetricSums(dict[str, tuple[float, float]]):
    """Metrics as (total, count), so that they add up over micro-batches and ranks before they are divided."""

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        old = self.get(name, (0.0, 0.0))
        self[name] = (old[0] + float(total), old[1] + float(count))

    def merge(self, other: dict[str, tuple[float, float]]) -> None:
        for name, (total, count) in other.items():
            self.add(name, total, count)

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in sorted(self.items()) if count}


@dataclass(frozen=True)
class LossOutput:
    """A weighted sum of losses; the loop divides it by the weight of the whole update, over all ranks."""

    total: Tensor  # []
    metrics: MetricSums


@dataclass(frozen=True)
class RolloutStats:
    """What a collect cost and gave: counters to add up, and metrics of its rollouts."""

    counters: dict[str, int]
    metrics: MetricSums


@dataclass(frozen=True)
class SelectedRollout:
    """One problem's attempts: the one to learn from, the first, and their scores."""

    problem: Problem
    best: Rollout
    score: Score
    first_rollout: Rollout
    first_score: Score
    attempts: int
    is_kept: bool


@dataclass(frozen=True)
class EvalReport:
    """Accuracy (of first attempts) of one adapter on one split under one protocol, with its 95% interval, in [0, 1].

    `whole` is the share of full marks, `figures` what the verifier reports beside the score, `pass_at_k` the accuracy
    of the best of `attempts`.
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


class ProcessGroup(Protocol):
    """The processes that hold the same weights: what one of them is to sample, any other can."""

    rank: int
    size: int

    def all_gather_object(
        self, items: list[Any], is_done: bool = False
    ) -> list[Any]: ...  # of all, in order of rank; all must call


class SingleProcess:
    """A group of one process."""

    rank, size = 0, 1

    def all_gather_object(self, items: list[Any], is_done: bool = False) -> list[Any]:
        return items


class Policy(Protocol):
    """A masked diffusion language model with an adapter, seen as a trunk and a head."""

    process_group: ProcessGroup
    device: Any  # where its weights are, and prompts go
    rows_that_fit: dict[
        int, int
    ]  # sequences at once that were found to fit into memory, by the tokens of an answer
    is_locked: bool  # whether all processes must make every forward together, each with an input of its own
    mask_id: int
    eos_id: int
    suppress_tokens: Sequence[int]
    vocabulary: int  # V, entries of the head
    max_length: int  # tokens of prompt and completion that the model was trained for

    # [B, T] -> [B, T, D]; a whole forward fills `kv_cache`; one of some positions, ids [B, W], reads the rest from it
    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: Any = None,
        cache_positions: slice | None = None,
    ) -> Tensor: ...

    def new_kv_cache(self) -> Any: ...  # an empty cache

    def head(self, hidden: Tensor) -> Tensor: ...  # [..., D] -> [..., V]

    def teacher(self) -> AbstractContextManager[None]: ...

    def reference(self) -> AbstractContextManager[None]: ...

    def use_teacher(self, kind: str, ema_decay: float) -> None: ...  # base, live or ema

    def after_update(self) -> None: ...

    def trainable(self) -> dict[str, Tensor]: ...

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor: ...  # -> [P]

    def tokens(self, text: str) -> Tensor: ...  # -> [n]

    def decode(self, ids: Tensor) -> str: ...


class Task(Protocol):
    """A kind of problem: data, how it is asked, and how an answer is verified."""

    name: str
    graded: bool  # True: partial scores; sample all attempts and keep the best
    scoring: str  # the rule that decides: published or strict
    instructions: str  # what a problem is asked with: the task's own wording, or prompt_file's

    def build(self) -> dict[str, list[Problem]]: ...  # the problems of every split

    def load(self, split: str) -> list[Problem]: ...

    def ask(self, text: str) -> Problem: ...  # a problem typed by a person

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]: ...

    def verify(self, problem: Problem, text: str) -> Score: ...

    def reward(self, problem: Problem, text: str) -> float: ...

    def of_generation(
        self, question: str, ground_truth: Any
    ) -> Problem: ...  # of a file of generations

    def ground_truth(self, problem: Problem) -> Any: ...  # as such a file has it


class TaughtTask(Task, Protocol):
    """A task that `pretrain` can learn."""

    def worked_solution(self, problem: Problem, is_careful: bool) -> str: ...


class Method(Protocol):
    """How rollouts become updates."""

    normalize_by_all_prompts: (
        bool  # True: an update's loss is divided by all its prompts, not by the kept ones
    )
    stats: RolloutStats

    def collect(
        self, policy: Policy, problems: list[Problem], update: int
    ) -> list[list[Batch]]: ...

    def loss(self, policy: Policy, batch: Any) -> LossOutput: ...


Progressed = Callable[[int], None]
