"""The protocol of algorithms: how rollouts become updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from dopsd.core.metrics import MetricSums
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutCollector, RolloutStats
from dopsd.rollout.config import CollectorConfig, SamplingConfig
from dopsd.rollout.prompts import PromptSet

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import Batch
    from dopsd.models.config import ModelConfig
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.task import Task


@dataclass(frozen=True)
class LossOutput:
    """The loss of a micro-batch."""

    # [], the weighted sum of the losses of its rows; the trainer divides it by the weight of the
    # whole update, over all ranks
    total: Tensor
    metrics: MetricSums  # metrics of the rows, as sums


@dataclass
class Made:
    """What a run has made so far; the trainer sets it before each collect."""

    updates: int = 0  # updates, of which an empty collect makes none


@dataclass(frozen=True)
class AlgorithmContext:
    """Everything that an algorithm needs in addition to its own settings."""

    task: Task  # the task of the run
    policy: Policy  # the model in training
    model: ModelConfig  # how the base is computed
    sampling: SamplingConfig  # lengths and steps of rollouts
    seed: int  # seed of the run
    updates: int  # updates of the run
    prompts_per_collect: int  # problems of a collect, over all ranks
    # sequences that fit into memory; an estimate if training measures it later
    sequences_at_once: int
    made: Made = field(default_factory=Made)  # updates so far

    def prompts(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig | None = None,
        split: str = "train",
    ) -> list[Tensor]:
        """Return the tokenised prompts of problems, each [P].

        Args:
            sampling: lengths and prefill; None: those of the run.
            split: theirs, for messages.
        """
        prompt_set = PromptSet(self.task, problems, split, self.model.prompt_style)
        return prompt_set.prompts(self.policy, sampling or self.sampling)

    def collector(self, config: CollectorConfig) -> RolloutCollector:
        """Return a collector of rollouts of training problems."""
        return RolloutCollector(
            self.task, self.sampling, config, self.model.prompt_style, self.seed
        )


@dataclass(frozen=True)
class Collected:
    """The result of a collect.

    No updates at all means an empty collect; an update without batches is a step on momentum alone.
    """

    updates: Sequence[Sequence[Batch]]  # the batches of each update that follows
    stats: RolloutStats  # what sampling them cost, and metrics of the rollouts


class Algorithm(Protocol):
    """Turns rollouts into updates.

    `build(config, context)` in a folder's algorithm.py returns one.
    """

    # True: an update's loss is divided by all prompts of the collect; False: by the weight of its
    # batches
    normalize_by_all_prompts: bool

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Return the batches to learn from, on the device of the policy.

        Args:
            problems: this rank's share of the collect's `prompts_per_collect` problems.
            collect: number of this collect in the run, from 0; part of every random key.
        """
        ...

    def loss(self, policy: Policy, batch: Any) -> LossOutput:  # noqa: ANN401  # its own kind of Batch
        """Return the loss of a micro-batch: the sum over rows of weight times loss, undivided."""
        ...
