"""Attempts and their verdicts: kept rollouts for training, EvalReport for evaluation, intervals for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.attempts import SamplingPlan, generate_until_correct
from dopsd.config import CollectorConfig, EvalProtocol, SamplingConfig
from dopsd.errors import DopsdError
from dopsd.keyed import key_from
from dopsd.sampling import Decoding
from dopsd.types import (
    EvalReport,
    MetricSums,
    Policy,
    Problem,
    Rollout,
    RolloutStats,
    Score,
    SelectedRollout,
    Task,
)

if TYPE_CHECKING:
    from torch import Tensor


def decoding(sampling: SamplingConfig, temperature: float = 0.0) -> Decoding:
    """The sampler's settings of a section; a Protocol may leave padding unmasked, or trade exactness for speed."""
    names = ["gen_length", "block_length", "steps", "gumbel_dtype", "stop_after_eos", "batch_size"]
    names += ["mask_padding", "threshold", "cache"] if isinstance(sampling, EvalProtocol) else []
    return Decoding(**{name: vars(sampling)[name] for name in names}, temperature=temperature)


@dataclass(frozen=True)
class PromptSet:
    """The problems of a split and how they are put to the model."""

    task: Task
    problems: Sequence[Problem]
    split: str
    prompt_style: str

    def prompts(self, policy: Policy, sampling: SamplingConfig) -> list[Tensor]:
        """Tokenised prompts, each [P], with the answer's prefill, cut on the left only where max_prompt_tokens says so.

        Raises DopsdError for a prompt that with its answer is longer than the model was trained for.
        """
        whole = self._whole(policy, sampling)
        cut = [ids[-(sampling.max_prompt_tokens or len(ids)) :] for ids in whole]
        for problem, ids in zip(self.problems, cut, strict=True):
            if len(ids) + sampling.gen_length > policy.max_length:
                raise DopsdError(
                    f"{self.task.name} problem {problem.id}: a prompt of {len(ids)} tokens and {sampling.gen_length} to "
                    f"write are more than the model's {policy.max_length}; lower gen_length or set sampling.max_prompt_tokens"
                )
        return cut

    def _whole(self, policy: Policy, sampling: SamplingConfig) -> list[Tensor]:
        return [
            policy.encode(self.task.messages(p, self.prompt_style), sampling.prefill)
            for p in self.problems
        ]

    def share_cut(self, policy: Policy, sampling: SamplingConfig) -> float:
        """Share of prompts that max_prompt_tokens cuts: their instructions may be lost."""
        if sampling.max_prompt_tokens is None:
            return 0.0
        whole = self._whole(policy, sampling)
        return sum(len(ids) > sampling.max_prompt_tokens for ids in whole) / len(whole)


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
        """Every attempt at every problem with its verdict; `stops`: none after the first that is correct."""
        c = self.config
        plan = SamplingPlan(c.attempts, c.first_temperature, c.retry_temperature, stops)
        asked = PromptSet(self.task, problems, "train", self.prompt_style)
        prompts = list(zip(problems, asked.prompts(policy, self.sampling), strict=True))
        scores: dict[tuple[str, int], Score] = {}

        def verify(problem: Problem, rollout: Rollout) -> Score:
            key = (problem.id, rollout.attempt)
            if key not in scores:
                scores[key] = self.task.verify(problem, policy.decode(rollout.completion_ids))
            return scores[key]

        tried = generate_until_correct(
            policy,
            prompts,
            decoding(self.sampling),
            plan,
            (self.seed, update),
            lambda p, r: verify(p, r).correct,
        )
        return [
            RolloutGroup(p, tuple(tried[p.id]), tuple(verify(p, r) for r in tried[p.id]))
            for p in problems
        ]

    def collect(
        self, policy: Policy, problems: Sequence[Problem], update: int
    ) -> list[SelectedRollout]:
        """pass@k for every problem, and for each the rollout to learn from (paper, section 3; notes, section 2).

        Ungraded tasks stop at the first correct attempt. Graded ones sample all attempts and keep the best, the
        latest on ties, if it scores `keep_threshold`.
        """
        return [
            self.scored(tried)
            for tried in self.sample(policy, problems, update, not self.task.graded)
        ]

    def scored(self, tried: RolloutGroup) -> SelectedRollout:
        """The best attempt, the latest on ties, and whether it is kept."""
        best = tried.best
        threshold = self.config.keep_threshold if self.task.graded else 1.0
        is_kept = self.config.keep == "all" or tried.scores[best].score >= threshold
        found = tried.scores
        return SelectedRollout(
            tried.problem,
            tried.rollouts[best],
            found[best],
            tried.rollouts[0],
            found[0],
            len(found),
            is_kept,
        )

    def summary(self, policy: Policy, scored: Sequence[SelectedRollout]) -> RolloutStats:
        """Counters and rollout metrics of one collect, before any gating; lengths in tokens, of first attempts."""
        sums = MetricSums()
        for item in scored:
            row = item.first_rollout.completion_ids.tolist()
            sums.add("attempts_used", item.attempts)
            sums.add("kept_share", item.is_kept)
            sums.add("best_score", item.score.score)
            sums.add("first_attempt_score", item.first_score.score)
            sums.add("first_attempt_square", item.first_score.score**2)
            sums.add(
                "completion_length", row.index(policy.eos_id) if policy.eos_id in row else len(row)
            )
        rollouts = sum(item.attempts for item in scored)
        counters = {
            "trajectories": sum(item.is_kept for item in scored),
            "rollouts": rollouts,
            "sampled_tokens": rollouts * self.sampling.gen_length,
        }
        return RolloutStats(counters, sums)


def report(
    asked: PromptSet,
    protocol: SamplingConfig,
    scores: dict[str, list[Score]],
    attempts: int,
    resamples: int,
) -> EvalReport:
    """Verdicts of every attempt at every problem, as figures: Wilson interval for 0/1 scores, bootstrap for partial ones."""
    task = asked.task
    tried = [scores[problem.id] for problem in asked.problems]
    first = [found[0] for found in tried]
    best = [max(score.score for score in found) for found in tried]

    def interval(values: list[float]) -> tuple[float, float]:
        return (
            bootstrap(values, resamples) if task.graded else wilson(round(sum(values)), len(values))
        )

    values = [score.score for score in first]
    return EvalReport(
        task=task.name,
        split=asked.split,
        protocol=protocol.model_dump(),
        accuracy=sum(values) / len(values),
        interval=interval(values),
        n=len(values),
        whole=sum(score.correct for score in first) / len(values),
        figures={
            name: sum(v.figures[name] for v in first) / len(first)
            for name in sorted(first[0].figures)
        },
        attempts=attempts,
        pass_at_k=sum(best) / len(best),
        pass_at_k_interval=interval(best),
        per_problem={
            problem.id: value for problem, value in zip(asked.problems, values, strict=True)
        },
    )


def through_first(tokens: Tensor, end: int) -> Tensor:
    """Positions up to the first `end` of each row, that one included. [..., G] -> [..., G]."""
    is_end = tokens == end
    return is_end.cumsum(-1) - is_end.long() == 0


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """95% interval of a share of 0/1 outcomes (Wilson 1927)."""
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    tmp = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - tmp), min(1.0, centre + tmp)


def bootstrap(values: Sequence[float], resamples: int) -> tuple[float, float]:
    """95% percentile bootstrap interval of a mean over problems; for a paired comparison, pass the differences."""
    import numpy

    draw = numpy.random.default_rng(key_from("bootstrap", len(values)) & 0xFFFFFFFF)
    sample = numpy.asarray(values)[draw.integers(0, len(values), (resamples, len(values)))]
    low, high = numpy.quantile(sample.mean(1), [0.025, 0.975])
    return float(low), float(high)
