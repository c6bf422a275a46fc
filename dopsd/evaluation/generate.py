"""Generate answers to the problems of a split, and write them to disk batch by batch.

Ranks share the problems. After an interruption only the missing problems are generated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dopsd.core.errors import TEMPORARY, Code
from dopsd.core.files import append_lines, read_lines
from dopsd.core.progress import Progress, log
from dopsd.core.types import NEVER, Problem, Rollout, Score
from dopsd.models.backends import distinct, measured_on
from dopsd.rollout.config import EvalProtocol
from dopsd.rollout.engine import SamplingPlan, generate_until_correct
from dopsd.rollout.prompts import PromptSet, decoding

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig
    from dopsd.models.llm_policy import LlmPolicy


@dataclass(frozen=True)
class Trials:
    """How often each problem is attempted for pass@k.

    The first attempt is greedy and later ones are sampled. Attempts stop at the first correct
    answer, unless the task gives partial scores.
    """

    attempts: int = 1  # k of pass@k
    temperature: float = 1.0  # of the attempts after the first
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """One attempt at one problem, with its score."""

    problem_id: str
    attempt: int  # counted from 0
    text: str
    score: Score
    steps: int  # denoising steps that it took


class Answering:
    """The answers of one adapter under one protocol, in `folder`: one file of lines for each rank.

    Of n ranks each takes every n-th batch, and an evaluation may continue with another number of
    ranks. With masked padding an answer does not depend on its batch: batches are split so that
    every rank gets a share, and only missing problems are generated. With unmasked padding the
    batches follow the order of the problems, whatever the number of ranks.

    A line holds all attempts at a problem, and what computed them: an evaluation may begin on one
    device and continue on another.
    """

    def __init__(
        self,
        folder: Path,
        prompt_set: PromptSet,
        protocol: EvalProtocol,
        trials: Trials,
        model: ModelConfig,
        timeout: int,
    ) -> None:
        self.folder, self.prompt_set, self.timeout = folder, prompt_set, timeout
        self.protocol, self.trials, self.model = protocol, trials, model
        self.rank, self.ranks = (
            int(os.environ.get("RANK", "0")),
            int(os.environ.get("WORLD_SIZE", "1")),
        )

    def found(self) -> dict[str, list[Answer]]:
        """Return the answers on disk by problem, attempts in order."""
        return {
            problem_id: [
                Answer(**record | {"score": Score(**record["score"])})
                for record in line["attempts"]
            ]
            for problem_id, line in self._lines().items()
        }

    def measured_on(self) -> list[dict[str, Any]]:
        """Return what computed the answers on disk."""
        return distinct(line["measured_on"] for line in self._lines().values())

    def _lines(self) -> dict[str, dict[str, Any]]:
        """Return the last line of each problem; a line that was cut off is skipped."""
        return {
            line["attempts"][0]["problem_id"]: line
            for path in sorted(self.folder.glob("answers.*.jsonl"))
            for line in read_lines(path)
        }

    def missing(self) -> list[Problem]:
        """Return the problems without answers on disk."""
        lines = self._lines()
        return [problem for problem in self.prompt_set.problems if problem.id not in lines]

    def complete(self, policy: LlmPolicy, progress: Progress) -> dict[str, list[Answer]]:
        """Generate the missing answers of this rank's share, then wait for the other ranks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = {problem.id for problem in self.missing()}
        progress.step(len(self.prompt_set.problems) - len(missing))
        prompts = self.prompt_set.prompts(policy, self.protocol)
        while not self._generate_share(policy, prompts, progress):
            log("evaluate: answers on disk are incomplete; generating the missing ones again")
        policy.forwards.join()
        wait_for_others(lambda: len(self.missing()), self.timeout)
        return self.found()

    def _generate_share(
        self, policy: LlmPolicy, prompts: Sequence[Tensor], progress: Progress
    ) -> bool:
        """Generate the missing answers of this rank; return whether all are on disk then."""
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
                # assume that the other ranks advance at the same pace
                progress.step(len(pending) + max(done_elsewhere, 0))
        return not {problem.id for problem in self.missing()} & {
            self.prompt_set.problems[i].id for batch in share for i in batch
        }

    def _batches(self, prompts: Sequence[Tensor]) -> list[list[int]]:
        """Return batches of indices: sorted by length if padding is masked, else in file order."""
        order, size = list(range(len(prompts))), self.protocol.batch_size
        if self.protocol.mask_padding:
            order.sort(key=lambda i: len(prompts[i]))
            size = min(size, -(-len(order) // self.ranks))
            # Graded tasks skip no attempt: smaller batches lose less at an interruption.
            if self.prompt_set.task.graded:
                size = -(-size // self.trials.attempts)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _generate(
        self, policy: LlmPolicy, prompts: list[tuple[Problem, Tensor]], progress: Progress
    ) -> None:
        task, trials = self.prompt_set.task, self.trials
        answers: dict[tuple[str, int], Answer] = {}

        def is_correct(problem: Problem, rollout: Rollout) -> bool:
            if (problem.id, rollout.attempt) not in answers:
                text = policy.text.decode(rollout.completion_ids, self.protocol.text_after_eos)
                used = rollout.revealed_at[rollout.revealed_at < NEVER].unique()
                answers[problem.id, rollout.attempt] = Answer(
                    problem.id, rollout.attempt, text, task.verify(problem, text), len(used)
                )
            return answers[problem.id, rollout.attempt].score.correct

        def sampled(rollouts: int) -> None:
            progress.step(0, f"{rollouts} more answers sampled")

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
        record = measured_on(self.model, self._rows(policy), policy.device)
        lines = [
            {
                "attempts": [
                    asdict(answers[p.id, rollout.attempt]) for rollout in rollouts_by_problem[p.id]
                ],
                "measured_on": record,
            }
            for p, _ in prompts
        ]
        append_lines(self.folder / f"answers.{self.rank}.jsonl", lines)

    def _rows(self, policy: LlmPolicy) -> int:
        """Return the batch size: the protocol's, or what fits after a GPU ran out of memory."""
        size = self.protocol.batch_size
        return min(size, policy.rows_that_fit.get(self.protocol.gen_length, size))


@contextmanager
def _precision(policy: LlmPolicy, protocol: EvalProtocol) -> Iterator[None]:
    """Compute in float16 autocast, as for the published accuracies, or in the model's own dtype."""
    is_half = protocol.autocast == "float16"
    with torch.autocast(policy.device.type, torch.float16) if is_half else nullcontext():
        yield


LOOK_EVERY = 0.5  # seconds


def wait_for_others(left: Callable[[], int], timeout: float) -> None:
    """Wait until nothing is left that other processes have to write."""
    number, since = left(), time.monotonic()
    while number:
        time.sleep(LOOK_EVERY)
        if (now := left()) != number:
            number, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            raise Code.PROCESS_LOST.error(
                f"evaluate: no other process has written anything for {timeout:.0f} s, and"
                f" {number} answers or reports are missing; what is there is kept, and the same"
                " command continues. launch.timeout says how long to wait",
                TEMPORARY,
            )
