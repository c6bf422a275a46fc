"""Record trajectories of the initial policy once: the order in which it writes each answer.

This is d3LLM's stage `record`. A problem is tried greedily, then at rising temperatures, until an
answer is correct. Recordings depend on base, data and settings alone, so all seeds share one file.
A run that needs a missing problem records it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dopsd.core.files import WORK, append_lines, read_lines
from dopsd.core.progress import Progress
from dopsd.core.rng import key_from
from dopsd.core.types import Problem
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.prompts import decoding, fingerprint_of_answers
from dopsd.rollout.sampler import GenerationRequest

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.d3llm.config import D3llmConfig


@dataclass(frozen=True)
class Recorded:
    """The recording of one problem."""

    problem_id: str  # the problem
    revealed_at: list[int]  # [G], the step at which each position was written
    tries: int  # number of tries
    correct: bool  # whether the last try was correct
    seconds: float  # wall-clock time, as an equal share of the time of its batch
    cpu_seconds: float = 0.0  # time of the processors, likewise


class Recorder:
    """Read and extend the recordings in work/record/<task>-<fingerprint>.jsonl."""

    def __init__(self, config: D3llmConfig, context: AlgorithmContext) -> None:
        self.config, self.context, task = config, context, context.task
        self.task, self.policy = task, context.policy
        sections = {
            "sampling": context.sampling.decisive("batch_size", "min_rows"),
            "tries": config.tries,
            "warmer": config.warmer,
        }
        answers = fingerprint_of_answers(
            task, "train", context.model, sections, "dopsd.algorithms.d3llm"
        )
        self.path = WORK / "record" / f"{task.name}-{answers}.jsonl"
        recorded = [Recorded(**line) for line in read_lines(self.path)]
        self.known = {item.problem_id: item for item in recorded}

    def _decoding(self, temperature: float) -> Decoding:
        """Return a decoding of one token per step, which gives the order of single tokens."""
        sampling_decoding = decoding(self.context.sampling, temperature)
        one_each = {"steps": sampling_decoding.gen_length, "threshold": None}
        return Decoding(**sampling_decoding.__dict__ | one_each)

    @torch.no_grad()
    def record(
        self, problems: Sequence[Problem], progress: Progress | None = None
    ) -> list[Recorded]:
        """Return the recordings of these problems, in order; missing ones are made and appended."""
        missing = [problem for problem in problems if problem.id not in self.known]
        if missing:
            started, cpu_started = time.monotonic(), time.process_time()
            with self.policy.reference():
                untimed = self._record_missing(missing, progress)
            seconds = round((time.monotonic() - started) / len(untimed), 4)
            cpu_seconds = round((time.process_time() - cpu_started) / len(untimed), 4)
            recorded = [replace(item, seconds=seconds, cpu_seconds=cpu_seconds) for item in untimed]
            self.known |= {item.problem_id: item for item in recorded}
            append_lines(self.path, [vars(item) for item in recorded])
        return [self.known[problem.id] for problem in problems]

    def _record_missing(self, problems: list[Problem], progress: Progress | None) -> list[Recorded]:
        prompts = self.context.prompts(problems)
        pending = list(zip(problems, prompts, strict=True))
        recorded: dict[str, Recorded] = {}
        for n in range(self.config.tries):
            requests = [
                GenerationRequest(p.id, n, ids, key_from("record", p.id, n)) for p, ids in pending
            ]
            rollouts = denoise_all(self.policy, requests, self._decoding(n * self.config.warmer))
            for (problem, _), rollout in zip(pending, rollouts, strict=True):
                after_eos = self.context.sampling.text_after_eos
                text = self.policy.text.decode(rollout.completion_ids, after_eos)
                is_correct = self.task.verify(problem, text).correct
                recorded[problem.id] = Recorded(
                    problem.id, rollout.revealed_at.tolist(), n + 1, is_correct, 0.0
                )
            num_pending = len(pending)
            pending = [(p, ids) for p, ids in pending if not recorded[p.id].correct]
            if progress:
                progress.step(
                    num_pending - len(pending) if n + 1 < self.config.tries else num_pending
                )
            if not pending:
                break
        return [recorded[problem.id] for problem in problems]


def record_all(config: D3llmConfig, context: AlgorithmContext, chunk: int = 256) -> Path:
    """Record every training problem that is not recorded yet.

    Args:
        chunk: problems between two writes to the file; a kill loses at most these.

    Returns:
        The file of recordings.
    """
    recorder, task = Recorder(config, context), context.task
    problems = [problem for problem in task.load("train") if problem.id not in recorder.known]
    with Progress("record", len(problems), "problem") as progress:
        for start in range(0, len(problems), chunk):
            recorder.record(problems[start : start + chunk], progress)
    return recorder.path
