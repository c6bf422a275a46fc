"""Answers to the problems of a split, written down as they come: shared by ranks, continued after a
kill by problem.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from dopsd.core.jsonl import append_lines, read_lines
from dopsd.core.progress import Progress, log
from dopsd.core.types import Problem, Rollout, Score
from dopsd.rollout.engine import SamplingPlan, generate_until_correct
from dopsd.rollout.prompts import PromptSet, decoding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from dopsd.models.llm_policy import LlmPolicy
    from dopsd.rollout.config import EvalProtocol

LOOK_EVERY = 0.5  # seconds between two looks at what the other ranks have written


@dataclass(frozen=True)
class Trials:
    """pass@k: the first attempt is greedy, later ones (all, where scores are partial: no stop) are
    sampled.
    """

    attempts: int = 1
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """One attempt at one problem, and the verdict on it."""

    problem_id: str
    attempt: int
    text: str
    score: Score


class Answering:
    """The answers of one adapter under one protocol, in `folder`: a file of lines a rank.

    Every rank takes every so-manieth batch, and a run may be continued with another number of
    ranks. Where padding is masked an answer does not depend on its batch: every rank gets a share,
    and only missing problems are asked. Where it is not, batches are those of the file, whatever
    the ranks.
    """

    def __init__(
        self, folder: Path, prompt_set: PromptSet, protocol: EvalProtocol, trials: Trials
    ) -> None:
        self.folder, self.prompt_set, self.protocol, self.trials = (
            folder,
            prompt_set,
            protocol,
            trials,
        )
        self.rank, self.ranks = (
            int(os.environ.get("RANK", "0")),
            int(os.environ.get("WORLD_SIZE", "1")),
        )

    def found(self) -> dict[str, list[Answer]]:
        """Answers by problem, attempts in order; a line holds all attempts at a problem, and one
        cut short by a kill none.
        """
        answers: dict[str, list[Answer]] = {}
        for path in sorted(self.folder.glob("answers.*.jsonl")):
            for attempts in read_lines(path):
                answers[attempts[0]["problem_id"]] = [
                    Answer(**record | {"score": Score(**record["score"])}) for record in attempts
                ]
        return answers

    def missing(self) -> list[Problem]:
        answers = self.found()
        return [problem for problem in self.prompt_set.problems if problem.id not in answers]

    def complete(self, policy: LlmPolicy, progress: Progress) -> dict[str, list[Answer]]:
        """Ask what is missing of this rank's share; all answers, when the other ranks are done as
        well.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = {problem.id for problem in self.missing()}
        progress.step(len(self.prompt_set.problems) - len(missing))
        prompts = self.prompt_set.prompts(policy, self.protocol)
        while not self._generate_share(policy, prompts, progress):
            log("evaluate: answers on disk were not whole; asking those problems again")
        policy.forwards.join()
        self.wait()
        return self.found()

    def _generate_share(
        self, policy: LlmPolicy, prompts: Sequence[Tensor], progress: Progress
    ) -> bool:
        """Ask what is missing of this rank's batches; whether all of it is then on disk."""
        missing = {problem.id for problem in self.missing()}
        share = self._batches(prompts)[self.rank :: self.ranks]
        for batch in share:
            pending = [i for i in batch if self.prompt_set.problems[i].id in missing]
            if pending:
                indices = pending if self.protocol.mask_padding else batch
                self._generate(
                    policy, [(self.prompt_set.problems[i], prompts[i]) for i in indices], progress
                )
                done_elsewhere = min(
                    len(pending) * (self.ranks - 1), progress.total - progress.done - len(pending)
                )
                # the other ranks are about as far
                progress.step(len(pending) + max(done_elsewhere, 0))
        return not {problem.id for problem in self.missing()} & {
            self.prompt_set.problems[i].id for batch in share for i in batch
        }

    def wait(self) -> None:
        """Until the other ranks have written their share as well."""
        while self.missing():
            time.sleep(LOOK_EVERY)

    def _batches(self, prompts: Sequence[Tensor]) -> list[list[int]]:
        """Indices in batches of similar length; in the order of the file where the padding is part
        of the protocol.
        """
        order, size = list(range(len(prompts))), self.protocol.batch_size
        if self.protocol.mask_padding:
            order.sort(key=lambda i: len(prompts[i]))
            size = min(size, -(-len(order) // self.ranks))
            if (
                self.prompt_set.task.graded
            ):  # no attempt is skipped: fewer problems at a time, so that a kill loses little
                size = -(-size // self.trials.attempts)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _generate(
        self, policy: LlmPolicy, prompts: list[tuple[Problem, Tensor]], progress: Progress
    ) -> None:
        task, trials = self.prompt_set.task, self.trials
        answers: dict[tuple[str, int], Answer] = {}

        def is_correct(problem: Problem, rollout: Rollout) -> bool:
            if (problem.id, rollout.attempt) not in answers:
                text = policy.text.decode(rollout.completion_ids)
                answers[problem.id, rollout.attempt] = Answer(
                    problem.id, rollout.attempt, text, task.verify(problem, text)
                )
            return answers[problem.id, rollout.attempt].score.correct

        def sampled(rollouts: int) -> None:
            progress.step(0, f"{rollouts} rollouts more")

        plan = SamplingPlan(
            trials.attempts,
            first_temperature=0.0,
            retry_temperature=trials.temperature,
            stop_at_first_correct=not task.graded,
            decoding=decoding(self.protocol),
            key=(trials.seed, 0),
        )
        with _precision(policy, self.protocol):
            rollouts_by_problem = generate_until_correct(
                policy,
                prompts,
                plan,
                is_correct,
                sampled,
            )
        for problem, _ in prompts:
            for rollout in rollouts_by_problem[problem.id]:
                is_correct(problem, rollout)
        records = [
            [asdict(answers[p.id, rollout.attempt]) for rollout in rollouts_by_problem[p.id]]
            for p, _ in prompts
        ]
        append_lines(self.folder / f"answers.{self.rank}.jsonl", records)


@contextmanager
def _precision(policy: LlmPolicy, protocol: EvalProtocol) -> Iterator[None]:
    """float16 autocast, as the published accuracies were made, or the model's own dtype."""
    is_half = protocol.autocast == "float16"
    with torch.autocast(policy.device.type, torch.float16) if is_half else nullcontext():
        yield
