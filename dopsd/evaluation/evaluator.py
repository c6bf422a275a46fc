"""Evaluate checkpoints, with a cache in work/eval/ that DVC, the flows and the CLI share.

A cached report is found by all that decides it: weights, protocol, data, base, settings and code.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dopsd.core.files import WORK, verified, with_digest, write_json
from dopsd.core.fingerprint import key_from, sha256
from dopsd.core.progress import Progress, is_main_rank, log
from dopsd.core.statistics import interval_of
from dopsd.core.types import EvalReport, Problem, Score
from dopsd.evaluation.generate import Answer, Answering, Trials, wait_for_others
from dopsd.models.adapter_files import identity
from dopsd.models.backends import in_words, measured_on
from dopsd.models.device import own_device
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.config import EvalProtocol, SamplingConfig
from dopsd.rollout.prompts import PromptSet, fingerprint_of_answers
from dopsd.tasks.common.task import grid_values
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.evaluation.config import EvalSettings


class Evaluator:
    """Scores checkpoints on one split of one task, or on the `first` problems of it.

    The model is loaded only for the first evaluation that is not in the cache. Answers are shared
    by all evaluators of a split, whatever their number of problems.
    """

    def __init__(
        self,
        settings: EvalSettings,
        split: str,
        trials: Trials | None = None,
        first: int | None = None,
    ) -> None:
        self.settings, self.split = settings, split
        self.lora, self.trials = settings.lora, trials or Trials()
        self.task = load_task(settings.task, settings.data)
        whole = self.task.load(split)
        self.problems = whole[:first]
        self.is_whole = len(self.problems) == len(whole)
        self.prompt_set = PromptSet(self.task, self.problems, split, settings.model.prompt_style)
        self.policy: LlmPolicy | None = None
        self.fresh: dict[str, Tensor] = {}  # the trained weights of the base
        self.loaded: Path | None = None  # checkpoint whose weights the policy has

    def cached(self, adapter: Path | None, protocol: EvalProtocol) -> Path:
        """Return the file of an evaluation's report in the cache.

        Args:
            adapter: the checkpoint folder; None for the base.
        """
        folder = self._folder(adapter, protocol)
        return folder.with_name(
            f"{folder.name}{'' if self.is_whole else f'.{len(self.problems)}'}.json"
        )

    def _folder(self, adapter: Path | None, protocol: EvalProtocol) -> Path:
        """Return the folder of the answers."""
        digest = sha256(identity(adapter))[:16] if adapter else "base"
        shape = self.lora and [self.lora.r, self.lora.alpha, sorted(self.lora.targets)]
        sections = {
            "sampling": protocol.decisive(),
            "split": self.split,
            "bootstrap": self.settings.bootstrap,
            "trials": asdict(self.trials),
            "lora": (shape or "all") if adapter else None,
        }
        answers = fingerprint_of_answers(
            self.task, self.split, self.settings.model, sections, "dopsd.evaluation"
        )
        return WORK / "eval" / f"{digest}.{answers}"

    def answering(self, adapter: Path | None, protocol: EvalProtocol) -> Answering:
        """Return the answers of an evaluation, complete or not."""
        return Answering(
            self._folder(adapter, protocol),
            self.prompt_set,
            protocol,
            self.trials,
            self.settings.model,
            self.settings.timeout,
        )

    def answers(self, adapter: Path | None, protocol: EvalProtocol) -> dict[str, list[Answer]]:
        """Return all attempts of a finished evaluation by problem."""
        return self.answering(adapter, protocol).found()

    def reports(
        self, stage: str, adapters: list[Path | None], *protocols: EvalProtocol
    ) -> list[list[dict[str, Any]]]:
        """Return the reports of all adapters under all protocols, and make those that are missing.

        Args:
            adapters: checkpoint folders; None stands for the base.

        Returns:
            For each protocol a list with one report for each adapter.
        """
        pending = [
            (a, p) for p in protocols for a in adapters if _cached_report(self.cached(a, p)) is None
        ]
        if len(pending) > 1:
            log(f"{stage}: {len(pending)} evaluations of {len(self.problems)} problems each")
        with Progress(stage, len(pending) * len(self.problems), "problem") as progress:
            for adapter, protocol in pending:
                self._evaluate(adapter, protocol, progress)
        reports = [[_read_report(self.cached(a, p)) for a in adapters] for p in protocols]
        self._log_elsewhere(stage, [report for row in reports for report in row])
        return reports

    def _log_elsewhere(self, stage: str, reports: list[dict[str, Any]]) -> None:
        """Log which scores come from another device, or from other versions of packages."""
        here = measured_on(self.settings.model, 0, own_device())
        elsewhere = Counter(
            in_words(report["measured_on"])
            for report in reports
            if any(record | {"batch_size": 0} != here for record in report["measured_on"])
        )
        for text, number in elsewhere.items():
            log(
                f"{stage}: {number} of {len(reports)} scores are of an earlier evaluation, measured"
                f" on {text}; here is {here['device']}"
            )

    def _evaluate(self, adapter: Path | None, protocol: EvalProtocol, progress: Progress) -> None:
        policy = self.with_adapter(adapter)
        cut_share = self.prompt_set.share_cut(policy, protocol)
        if cut_share:
            log(
                f"{self.task.name}: {cut_share:.0%} of the prompts are cut to their last"
                f" {protocol.max_prompt_tokens} tokens"
            )
        with policy.merged() if adapter and protocol.merged else nullcontext():
            answers = self.answering(adapter, protocol).complete(policy, progress)
        scores = {name: [answer.score for answer in attempts] for name, attempts in answers.items()}
        steps = [answers[problem.id][0].steps for problem in self.problems]
        path = self.cached(adapter, protocol)
        if is_main_rank():
            eval_report = report(
                self.prompt_set,
                protocol,
                scores,
                sum(steps) / len(steps),
                self.trials.attempts,
                self.settings.bootstrap,
            )
            records = self.answering(adapter, protocol).measured_on()
            write_json(
                path, with_digest(asdict(replace(eval_report, measured_on=records))), is_shared=True
            )
        # the first rank writes it
        wait_for_others(lambda: int(_cached_report(path) is None), self.settings.timeout)

    def take_part(self) -> None:
        """With a sharded base, take part in the other processes' forwards until all are done."""
        if self.settings.shard:
            self.with_adapter(None).forwards.join()

    def take_model(self, other: Evaluator) -> None:
        """Take over the model of another evaluator of the same base, if it has loaded one."""
        if other.policy is not None:
            self.policy, self.fresh, self.loaded = other.policy, other.fresh, other.loaded
            other.policy = None

    def prompt_of(self, problem: Problem) -> Tensor:
        """Return a problem's prompt tokens [P] as in training rollouts."""
        policy = self.policy or self.with_adapter(None)
        prompt_set = replace(self.prompt_set, problems=[problem])
        return prompt_set.prompts(policy, self.settings.sampling)[0]

    def with_adapter(self, adapter: Path | None) -> LlmPolicy:
        """Return the policy with a checkpoint's weights; None restores the base."""
        if self.policy is None:
            shard = self.settings.shard and int(os.environ.get("WORLD_SIZE", "1")) > 1
            self.policy = load_policy(self.settings.model, self.lora, 0, shard=shard)
            self.fresh = {k: v.clone() for k, v in self.policy.trainable().items()}
            self.loaded = None
        if adapter != self.loaded:
            self._load(self.policy, adapter)
            self.loaded = adapter
        return self.policy

    def _load(self, policy: LlmPolicy, adapter: Path | None) -> None:
        if adapter:
            policy.load(adapter)
        elif self.lora is None:
            policy.load_all(Path(self.settings.model.path))
        for name, p in () if adapter else policy.trainable().items():
            p.data.copy_(self.fresh[name])


def _read_report(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = verified(path.read_bytes())
    return report


def _cached_report(path: Path) -> dict[str, Any] | None:
    """Return the report in a file of the cache; None if the file is missing or damaged."""
    try:
        return _read_report(path)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        log(f"{path}: {error}; evaluating again")
        return None


def report(
    prompt_set: PromptSet,
    protocol: SamplingConfig,
    scores: dict[str, list[Score]],
    steps: float,
    attempts: int,
    resamples: int,
) -> EvalReport:
    """Return the report of an evaluation.

    Intervals are 95%: Wilson for 0/1 scores, bootstrap over problems for partial scores.

    Args:
        steps: mean denoising steps of a first attempt.
        attempts: k of pass@k.
    """
    task = prompt_set.task
    scores_by_problem = [scores[problem.id] for problem in prompt_set.problems]
    first_scores = [attempt_scores[0] for attempt_scores in scores_by_problem]
    best_scores = [
        max(score.score for score in attempt_scores) for attempt_scores in scores_by_problem
    ]

    values = [score.score for score in first_scores]
    return EvalReport(
        task=task.name,
        split=prompt_set.split,
        protocol=protocol.decisive(),
        accuracy=sum(values) / len(values),
        interval=interval_of(values, task.graded, resamples),
        n=len(values),
        whole=sum(score.correct for score in first_scores) / len(values),
        figures={
            name: sum(v.figures[name] for v in first_scores) / len(first_scores)
            for name in sorted(first_scores[0].figures)
        },
        attempts=attempts,
        pass_at_k=sum(best_scores) / len(best_scores),
        pass_at_k_interval=interval_of(best_scores, task.graded, resamples),
        per_problem={
            problem.id: value for problem, value in zip(prompt_set.problems, values, strict=True)
        },
        steps=steps,
    )


DRAWN = 10


def drawn_answers(
    evaluator: Evaluator, adapter: Path, protocol: EvalProtocol
) -> list[dict[str, Any]]:
    """Return the first attempts of base and trained model at DRAWN problems.

    The problems are drawn by a key of their ids, so nobody chooses them, and every run of a task
    shows the same ones. An answer that is no longer on disk is left out.
    """
    problems = sorted(evaluator.problems, key=lambda problem: key_from("answers", problem.id))
    sides = {
        "base": evaluator.answers(None, protocol),
        "trained": evaluator.answers(adapter, protocol),
    }
    rows = []
    for problem in problems[:DRAWN]:
        if not all(problem.id in answers for answers in sides.values()):
            log(f"test: {problem.id}: answer not in work/eval any more; left out of answers.json")
            continue
        row: dict[str, Any] = {"problem": problem.prompt, "answer": problem.answer}
        row |= {side: _of(evaluator, problem, a[problem.id][0]) for side, a in sides.items()}
        rows.append(row)
    return rows


def _of(evaluator: Evaluator, problem: Problem, answer: Answer) -> dict[str, Any]:
    grid = grid_values(evaluator.task, problem, answer.text)
    return {"text": answer.text, "grid": grid, **asdict(answer.score)}
