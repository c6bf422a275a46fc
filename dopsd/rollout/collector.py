"""Attempts at problems with their scores, and the rollout of each that is kept for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.metrics import MetricSums
from dopsd.rollout.engine import SamplingPlan, generate_until_correct
from dopsd.rollout.groups import RolloutStats, SelectedRollout
from dopsd.rollout.prompts import PromptSet, decoding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.core.types import Problem, Rollout, Score
    from dopsd.models.policy import Policy
    from dopsd.rollout.config import CollectorConfig, SamplingConfig
    from dopsd.tasks.common.task import Task


@dataclass(frozen=True)
class RolloutGroup:
    """A problem, its attempts in order, and their verdicts."""

    problem: Problem
    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]

    @property
    def best(self) -> int:
        """Index of the best attempt, the latest on ties."""
        return max(range(len(self.scores)), key=lambda i: (self.scores[i].score, i))


@dataclass(frozen=True)
class RolloutCollector:
    """Samples and verifies: what a method needs to see of task, prompt and sampler."""

    task: Task
    sampling: SamplingConfig
    config: CollectorConfig
    prompt_style: str
    seed: int

    def sample(
        self, policy: Policy, problems: Sequence[Problem], update: int, stops: bool
    ) -> list[RolloutGroup]:
        """Every attempt at every problem with its verdict; `stops`: none after the first that is
        correct.
        """
        c = self.config
        temperatures = c.first_temperature, c.retry_temperature
        key = self.seed, update
        plan = SamplingPlan(c.attempts, *temperatures, stops, decoding(self.sampling), key)
        prompt_set = PromptSet(self.task, problems, "train", self.prompt_style)
        prompts = list(zip(problems, prompt_set.prompts(policy, self.sampling), strict=True))
        scores: dict[tuple[str, int], Score] = {}

        def verify(problem: Problem, rollout: Rollout) -> Score:
            key = (problem.id, rollout.attempt)
            if key not in scores:
                scores[key] = self.task.verify(problem, policy.text.decode(rollout.completion_ids))
            return scores[key]

        rollouts = generate_until_correct(policy, prompts, plan, lambda p, r: verify(p, r).correct)
        return [
            RolloutGroup(p, tuple(rollouts[p.id]), tuple(verify(p, r) for r in rollouts[p.id]))
            for p in problems
        ]

    def collect(
        self, policy: Policy, problems: Sequence[Problem], update: int
    ) -> list[SelectedRollout]:
        """pass@k for every problem, and for each the rollout to learn from (paper, section 3;
        notes, section 2).

        Ungraded tasks stop at the first correct attempt. Graded ones sample all attempts and keep
        the best, the latest on ties, if it scores `keep_threshold`.
        """
        return [
            self.scored(group)
            for group in self.sample(policy, problems, update, not self.task.graded)
        ]

    def scored(self, group: RolloutGroup) -> SelectedRollout:
        """The best attempt, the latest on ties, and whether it is kept."""
        best = group.best
        threshold = self.config.keep_threshold if self.task.graded else 1.0
        is_kept = self.config.keep == "all" or group.scores[best].score >= threshold
        scores = group.scores
        return SelectedRollout(
            group.problem,
            group.rollouts[best],
            scores[best],
            group.rollouts[0],
            scores[0],
            len(scores),
            is_kept,
        )

    def summary(self, policy: Policy, selected: Sequence[SelectedRollout]) -> RolloutStats:
        """Counters and rollout metrics of one collect, before any gating; lengths in tokens, of
        first attempts.
        """
        sums = MetricSums()
        for item in selected:
            row = item.first_rollout.completion_ids.tolist()
            sums.add("attempts_used", item.attempts)
            sums.add("kept_share", item.is_kept)
            sums.add("best_score", item.score.score)
            sums.add("first_attempt_score", item.first_score.score)
            sums.add("first_attempt_square", item.first_score.score**2)
            sums.add(
                "completion_length", row.index(policy.eos_id) if policy.eos_id in row else len(row)
            )
        rollouts = sum(item.attempts for item in selected)
        counters = {
            "trajectories": sum(item.is_kept for item in selected),
            "rollouts": rollouts,
            "sampled_tokens": rollouts * self.sampling.gen_length,
        }
        return RolloutStats(counters, sums)
