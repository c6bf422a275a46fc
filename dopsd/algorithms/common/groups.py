"""Groups of rollouts of one problem: their rewards, and the advantage of each rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

from dopsd.algorithms.common.base import Collected
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.collector import RolloutCollector, RolloutGroup, RolloutStats
from dopsd.rollout.config import CollectorConfig

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.common.batch import Batch
    from dopsd.algorithms.common.config import GroupConfig
    from dopsd.models.policy import Policy

Baseline = Literal["mean", "loo", "z"]


@dataclass(frozen=True)
class Rewarded:
    """A completion with its reward, its advantage in its group, and whether it is right."""

    rollout: Rollout
    reward: float
    advantage: float
    is_correct: bool = False


def group_collector(config: GroupConfig, context: AlgorithmContext) -> RolloutCollector:
    """Return a collector of `group_size` rollouts of every problem."""
    t = config.temperature
    attempts = CollectorConfig(
        attempts=config.group_size, first_temperature=t, retry_temperature=t, keep="all"
    )
    return context.collector(attempts)


def advantages(rewards: Sequence[float], baseline: Baseline, epsilon: float = 0.0) -> list[float]:
    """Compare each reward of a group with the others; equal rewards give exactly 0.

    Args:
        rewards: r, at least two.
        baseline: mean: r less the mean of the group; loo (leave one out): r less the mean of the
            other rewards; z: r less the mean, divided by the standard deviation (over n - 1).
    """
    if max(rewards) == min(rewards):  # the rounded mean of six 0.1 is not 0.1
        return [0.0] * len(rewards)
    centre = sum(rewards) / len(rewards)
    differences = [r - centre for r in rewards]
    if baseline == "loo":
        return [d * len(rewards) / (len(rewards) - 1) for d in differences]
    if baseline == "z":
        scale = stdev(rewards) + epsilon
        return [d / scale for d in differences]
    return differences


class RewardedGroups:
    """Samples groups of rollouts, and rewards them.

    Args:
        epsilon: added to the standard deviation of `z`.
    """

    def __init__(
        self,
        config: GroupConfig,
        collector: RolloutCollector,
        baseline: Baseline = "mean",
        epsilon: float = 0.0,
    ) -> None:
        self.config, self.collector = config, collector
        self.baseline, self.epsilon = baseline, epsilon

    def sample(
        self, policy: Policy, problems: list[Problem], collect: int
    ) -> tuple[list[list[Rewarded]], RolloutStats]:
        """Return the rewarded rollouts of each problem, and what they cost."""
        groups = self.collector.sample(policy, problems, collect, stops=False)
        stats = self.collector.summary(policy, [self.collector.scored(group) for group in groups])
        rewarded = []
        for group in groups:
            rewards, is_correct = self._rewards(policy, group)
            stats.metrics.add("reward", sum(rewards), len(rewards))
            stats.metrics.add("flat_groups", max(rewards) == min(rewards))
            compared = advantages(rewards, self.baseline, self.epsilon)
            parts = zip(group.rollouts, rewards, compared, is_correct, strict=True)
            rewarded.append([Rewarded(*part) for part in parts])
        counters = stats.counters | {"trajectories": sum(map(len, rewarded))}
        return rewarded, RolloutStats(counters, stats.metrics)

    def _rewards(self, policy: Policy, group: RolloutGroup) -> tuple[list[float], list[bool]]:
        """Return the rewards of a group's texts without special tokens, and which are right.

        Published trainers decode so. What was scored may have special tokens written out.
        """
        task, text, problem = self.collector.task, self.collector.text, group.problem
        texts = [text(policy, rollout, special=False) for rollout in group.rollouts]
        is_correct = [
            (score if plain == text(policy, rollout) else task.verify(problem, plain)).correct
            for plain, rollout, score in zip(texts, group.rollouts, group.scores, strict=True)
        ]
        if self.config.reward == "correct":
            return [float(right) for right in is_correct], is_correct
        return [task.reward(problem, plain) for plain in texts], is_correct


class GroupMethod(ABC):
    """Compares rewards within groups of rollouts, and makes several updates per collect."""

    normalize_by_all_prompts = False
    baseline: Baseline = "mean"

    def __init__(self, config: Any, collector: RolloutCollector, max_sequences: int) -> None:  # noqa: ANN401  # an IteratedGroupConfig
        self.config, self.collector, self.max_sequences = config, collector, max_sequences
        self.groups = RewardedGroups(config, collector, self.baseline)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and reward groups, and return one update per inner iteration."""
        groups, stats = self.groups.sample(policy, problems, collect)
        taught = [item for group in groups for item in self.taught(group)]
        iterations = range(self.config.iterations if taught else 0)
        updates = [[self.batch(policy, taught, collect, n)] for n in iterations]
        counters = stats.counters | {"trajectories": len(taught)}
        return Collected(updates, RolloutStats(counters, stats.metrics))

    def taught(self, group: list[Rewarded]) -> list[Rewarded]:
        """Return what a group teaches: all of it, if a method leaves nothing out."""
        return group

    @abstractmethod
    def batch(
        self, policy: Policy, taught: Sequence[Rewarded], collect: int, iteration: int
    ) -> Batch:
        """Return the batch of an update; every iteration has its own masks."""
