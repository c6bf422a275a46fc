"""Sample attempts at problems, score them, and select one rollout of each problem for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.core.types import Problem, Rollout, Score
from dopsd.rollout.config import CollectorConfig, SamplingConfig
from dopsd.rollout.engine import SamplingPlan, generate_until_correct
from dopsd.rollout.prompts import PromptSet, decoding

if TYPE_CHECKING:
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.task import Task

MANY_EMPTY = 0.25  # share of empty answers in a collect from which a run says so
_said: set[str] = set()  # tasks of which it was said


@dataclass(frozen=True)
class RolloutGroup:
    """All attempts at a problem, in order, with their scores."""

    problem: Problem
    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]

    @property
    def best(self) -> int:
        """Index of the best attempt, the latest on ties."""
        return max(range(len(self.scores)), key=lambda i: (self.scores[i].score, i))


@dataclass(frozen=True)
class RolloutCollector:
    """Sample and score rollouts of training problems."""

    task: Task  # the task, which asks and scores
    sampling: SamplingConfig  # lengths and steps of a rollout
    config: CollectorConfig  # attempts, temperatures, and which attempts are kept
    prompt_style: str  # compact or instructions
    seed: int  # seed of the run
    top_k: int = 0  # likeliest tokens that are kept of each committed one's distribution; 0: none

    def sample(
        self, policy: Policy, problems: Sequence[Problem], collect: int, stops: bool
    ) -> list[RolloutGroup]:
        """Return all attempts at every problem, with their scores.

        Args:
            collect: number of the collect, part of every random key.

        Returns:
            One group per problem, in the order of `problems`.
        """
        c = self.config
        temperatures = c.first_temperature, c.retry_temperature
        key = self.seed, collect
        kept = replace(decoding(self.sampling), top_k=self.top_k)
        plan = SamplingPlan(c.attempts, *temperatures, stops, kept, key)
        prompt_set = PromptSet(self.task, problems, "train", self.prompt_style)
        prompts = list(zip(problems, prompt_set.prompts(policy, self.sampling), strict=True))
        scores: dict[tuple[str, int], Score] = {}

        def verify(problem: Problem, rollout: Rollout) -> Score:
            key = (problem.id, rollout.attempt)
            if key not in scores:
                scores[key] = self.task.verify(problem, self.text(policy, rollout))
            return scores[key]

        rollouts = generate_until_correct(policy, prompts, plan, lambda p, r: verify(p, r).correct)
        return [
            RolloutGroup(p, tuple(rollouts[p.id]), tuple(verify(p, r) for r in rollouts[p.id]))
            for p in problems
        ]

    def text(self, policy: Policy, rollout: Rollout, special: bool = True) -> str:
        """Return the text of a rollout that is scored; rewards take it without special tokens."""
        after_eos = self.sampling.text_after_eos
        return policy.text.decode(rollout.completion_ids, after_eos, special)

    def collect(
        self, policy: Policy, problems: Sequence[Problem], collect: int
    ) -> list[SelectedRollout]:
        """Sample every problem up to pass@k, and select the rollout of each to learn from.

        Tasks without partial scores stop at the first correct attempt. Graded tasks sample all
        attempts and select the best, the latest on ties; it is kept if it scores `keep_threshold`
        (arXiv 2606.18195, section 3; docs/algorithms/d_opsd.md).

        Args:
            collect: number of the collect, part of every random key.
        """
        return [
            self.scored(group)
            for group in self.sample(policy, problems, collect, not self.task.graded)
        ]

    def scored(self, group: RolloutGroup) -> SelectedRollout:
        """Return the best attempt, the latest on ties, and whether it is kept."""
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
        """Return counters and metrics of a collect, before a method drops any rollout.

        Args:
            selected: one selected rollout per problem; lengths, in tokens, are of first attempts.
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
        empty = sum(int(s.first_rollout.completion_ids[0]) == policy.eos_id for s in selected)
        if empty > MANY_EMPTY * len(selected) and self.task.name not in _said:
            _said.add(self.task.name)
            log(
                f"warning: {empty} of {len(selected)} first answers to {self.task.name} are empty"
                " (their first token ends the text), from which little is learnt; look at some with"
                " `dopsd sample`, and at the base's blocks, prompt and order of tokens"
            )
        rollouts = sum(item.attempts for item in selected)
        counters = {
            "trajectories": sum(item.is_kept for item in selected),
            "rollouts": rollouts,
            "sampled_tokens": rollouts * self.sampling.gen_length,
        }
        return RolloutStats(counters, sums)


@dataclass(frozen=True)
class SelectedRollout:
    """The rollout of a problem to learn from, with its first attempt for statistics."""

    problem: Problem  # the problem
    best: Rollout  # the best attempt
    score: Score  # score of the best attempt
    first_rollout: Rollout  # the first attempt
    first_score: Score  # score of the first attempt
    attempts: int  # number of attempts made
    is_kept: bool  # whether training uses the best attempt


@dataclass(frozen=True)
class RolloutStats:
    """Statistics of a collect."""

    # `trajectories`, `rollouts` and `sampled_tokens`, added up over collects
    counters: dict[str, int]
    metrics: MetricSums  # metrics of the rollouts, as sums
