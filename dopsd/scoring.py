"""Attempts and their verdicts: kept rollouts for training, EvalReport for evaluation, intervals for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dopsd.config import Attempts, Sampling
from dopsd.keyed import text_key
from dopsd.sampling import Decoding, Draw, PassK, attempts, denoise_all
from dopsd.types import Collected, EvalReport, Policy, Problem, Progressed, Rollout, Scored, Sums, Task, Verdict


def decoding(sampling: Sampling, temperature: float = 0.0) -> Decoding:
    return Decoding(**sampling.model_dump(), temperature=temperature)


@dataclass(frozen=True)
class Attempter:
    """Samples and verifies: what a method needs to see of task, prompt and sampler."""

    task: Task
    sampling: Sampling
    config: Attempts
    prompt_style: str
    seed: int

    def encode(self, policy: Policy, problem: Problem):
        return policy.encode(self.task.messages(problem, self.prompt_style))

    def collect(self, policy: Policy, problems: Sequence[Problem], update: int) -> list[Scored]:
        """pass@k for every problem, and for each the rollout to learn from (paper, section 3; notes, section 2).

        Ungraded tasks stop at the first correct attempt. Graded ones sample all attempts and keep the best, the
        latest on ties, if it scores `keep_threshold`.
        """
        c = self.config
        pass_k = PassK(c.attempts, c.first_temperature, c.retry_temperature, not self.task.graded)
        prompts = [(problem, self.encode(policy, problem)) for problem in problems]
        verdicts: dict[tuple[str, int], Verdict] = {}

        def is_correct(problem: Problem, rollout: Rollout) -> bool:
            found = self.task.verify(problem, policy.decode(rollout.completion_ids))
            verdicts[problem.id, rollout.attempt] = found
            return found.correct

        tried = attempts(policy, prompts, decoding(self.sampling), pass_k, (self.seed, update), is_correct)
        return [self._scored(problem, tried[problem.id], is_correct, verdicts) for problem in problems]

    def _scored(self, problem: Problem, tried: list[Rollout], is_correct, verdicts) -> Scored:
        for rollout in tried:
            if (problem.id, rollout.attempt) not in verdicts:
                is_correct(problem, rollout)
        found = [verdicts[problem.id, rollout.attempt] for rollout in tried]
        best = max(range(len(tried)), key=lambda i: (found[i].score, i))
        threshold = self.config.keep_threshold if self.task.graded else 1.0
        is_kept = self.config.keep == "all" or found[best].score >= threshold
        return Scored(problem, tried[best], found[best], found[0], len(tried), is_kept)

    def summary(self, policy: Policy, scored: Sequence[Scored]) -> Collected:
        """Counters and rollout metrics of one collect, before any gating."""
        sums = Sums()
        for item in scored:
            row = item.best.completion_ids.tolist()
            sums.add("attempts_used", item.attempts)
            sums.add("kept_share", item.is_kept)
            sums.add("best_score", item.verdict.score)
            sums.add("first_attempt_score", item.first.score)
            sums.add("completion_length", row.index(policy.eos_id) if policy.eos_id in row else len(row))
        rollouts = sum(item.attempts for item in scored)
        counters = {
            "trajectories": sum(item.is_kept for item in scored),
            "rollouts": rollouts,
            "sampled_tokens": rollouts * self.sampling.gen_length,
        }
        return Collected(counters, sums)


@dataclass(frozen=True)
class Asked:
    """The problems of a split and how they are put to the model."""

    task: Task
    problems: Sequence[Problem]
    split: str
    prompt_style: str


def score(policy: Policy, asked: Asked, sampling: Sampling, resamples: int, progressed: Progressed | None = None) -> EvalReport:
    """Greedy pass@1 on a split, with a Wilson interval for 0/1 scores and a bootstrap one for partial scores."""
    task, problems = asked.task, asked.problems
    draws = [Draw(p.id, 0, policy.encode(task.messages(p, asked.prompt_style)), 0) for p in problems]
    rollouts = denoise_all(policy, draws, decoding(sampling), progressed)
    verdicts = [task.verify(p, policy.decode(r.completion_ids)) for p, r in zip(problems, rollouts, strict=True)]
    values = [verdict.score for verdict in verdicts]
    whole = sum(verdict.correct for verdict in verdicts)
    return EvalReport(
        task=task.name,
        split=asked.split,
        protocol=sampling.model_dump(),
        accuracy=sum(values) / len(values),
        interval=bootstrap(values, resamples) if task.graded else wilson(whole, len(values)),
        n=len(values),
        whole=whole / len(values),
        per_problem={p.id: value for p, value in zip(problems, values, strict=True)},
    )


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """95% interval of a share of 0/1 outcomes (Wilson 1927)."""
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: Sequence[float], resamples: int) -> tuple[float, float]:
    """95% percentile bootstrap interval of a mean over problems; for a paired comparison, pass the differences."""
    import numpy

    draw = numpy.random.default_rng(text_key("bootstrap", len(values)) & 0xFFFFFFFF)
    sample = numpy.asarray(values)[draw.integers(0, len(values), (resamples, len(values)))]
    low, high = numpy.quantile(sample.mean(1), [0.025, 0.975])
    return float(low), float(high)
