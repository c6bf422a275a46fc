"""`dopsd verify-teacher --task sudoku`: does the base improve with part of its own answer?

Paper, Table 1: greedy pass@1, pass@k, and the self-teacher. The
self-teacher generates greedily again with a share of the final answer's tokens in place; entering a
block clears the block. All are measured with the base on training problems. Where a task has gold
answers or a solver, the teacher of method infill is measured too: of its own greedy completion it
is shown the answer's place, with a share of the right answer in it, if the verifier reads it there.
Rows of a block-causal base come twice: as the base attends, and with a teacher that sees all blocks
(teacher_attention: all).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dopsd.analysis.figures import axes_of, percent_axis, save_figure
from dopsd.core.extras import require
from dopsd.core.files import WORK, append_lines, fresh_folder, read_lines, write_json
from dopsd.core.paths import REPORTS
from dopsd.core.progress import Progress, log
from dopsd.core.statistics import interval_of
from dopsd.core.types import Problem
from dopsd.models.backends import distinct, measured_on
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.answer_span import answer_hints, answer_source, hints
from dopsd.rollout.collector import RolloutCollector, SelectedRollout
from dopsd.rollout.config import CollectorConfig
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.prompts import decoding, fingerprint_of_answers
from dopsd.rollout.sampler import GenerationRequest
from dopsd.tasks.common.task import Task
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.config.params import Params

SPLIT = "train"
SEES_ALL = ", sees all"  # of rows of a teacher whose tokens see every other
TEACHER, STUDENT = "#b35900", "#1e3cff"  # colours of bars; white text is legible on both


def run(params: Params, task_name: str) -> dict[str, Any]:
    """Measure all rows of the table, log them, and write reports/<task>/teacher/."""
    require("verify-teacher", "matplotlib")
    task = load_task(task_name, params.data.tasks[task_name])
    lines = Verification(params, task).complete()
    records = distinct(line["measured_on"] for line in lines)
    table = {
        name: _figures([line["scores"][name] for line in lines], task, params.evaluate.bootstrap)
        | {"measured_on": records}
        for name in lines[0]["scores"]
    }
    for name, row in table.items():
        log(
            f"{name:26} {row['accuracy']:.4f}  [{row['interval'][0]:.4f}, {row['interval'][1]:.4f}]"
            f"  n = {row['n']}"
        )
    with fresh_folder(REPORTS / task_name / "teacher") as tmp:
        write_json(tmp / "teacher.json", table)
        _draw(
            table,
            f"{task_name}, base, {len(lines)} training problems",
            tmp / "teacher.png",
        )
    return table


def _figures(values: list[float], task: Task, resamples: int) -> dict[str, Any]:
    interval = interval_of(values, task.graded, resamples)
    return {"accuracy": sum(values) / len(values), "interval": interval, "n": len(values)}


class Verification:
    """Scores of every problem, one line each in work/teacher/<task>-<fingerprint>.jsonl."""

    def __init__(self, params: Params, task: Task) -> None:
        self.params, self.task, self.settings = params, task, params.verify_teacher
        self.model = params.model_of(task.name)
        self.problems = task.load(SPLIT)[: self.settings.problems]
        sections = {
            "sampling": params.sampling.decisive("batch_size", "min_rows"),
            "verify_teacher": self.settings.model_dump(exclude={"problems"}),
        }
        answers = fingerprint_of_answers(task, SPLIT, self.model, sections)
        self.path = WORK / "teacher" / f"{task.name}-{answers}.jsonl"

    @torch.no_grad()
    def complete(self) -> list[dict[str, Any]]:
        """Score what is missing, and return the line of every problem in order.

        A line has a problem's scores, and what computed them. An interrupted wave of problems is
        scored again.
        """
        lines_by_id = {line["id"]: line for line in read_lines(self.path)}
        missing = [problem for problem in self.problems if problem.id not in lines_by_id]
        wave = self.params.sampling.batch_size
        with Progress("verify_teacher", len(missing), "problem") as progress:
            policy = None
            for start in range(0, len(missing), wave):
                policy = policy or load_policy(self.model, None, 0)
                wave_scores = self._scores(policy, missing[start : start + wave])
                record = measured_on(self.model, wave, policy.device)
                lines = {
                    name: {"id": name, "scores": scores, "measured_on": record}
                    for name, scores in wave_scores.items()
                }
                append_lines(self.path, lines.values())
                lines_by_id |= lines
                progress.step(len(lines))
        return [lines_by_id[problem.id] for problem in self.problems]

    def _scores(self, policy: LlmPolicy, problems: list[Problem]) -> dict[str, dict[str, float]]:
        s = self.settings
        greedy = self._collect(policy, problems, CollectorConfig(attempts=1, first_temperature=0.0))
        # a graded task samples every attempt at the same temperature
        first_temperature = s.temperature if self.task.graded else 0.0
        tries = CollectorConfig(
            attempts=s.attempts,
            first_temperature=first_temperature,
            retry_temperature=s.temperature,
        )
        rollouts = self._collect(policy, problems, tries)
        scores = {item.problem.id: {"pass@1": item.score.score} for item in greedy}
        for item in rollouts:
            scores[item.problem.id][f"pass@{s.attempts}"] = item.score.score
        ends = policy.mask_id, policy.eos_id
        rows = {
            f"teacher at {ratio:.2f}": [hints(item.best, ratio, *ends) for item in rollouts]
            for ratio in s.reveal_ratios
        }
        after_eos = self.params.sampling.text_after_eos
        if source := answer_source(self.task):
            rows |= {
                f"{source} at {ratio:.2f}": [
                    answer_hints(policy, self.task, item.problem, item.best, ratio, after_eos)
                    for item in greedy
                ]
                for ratio in s.answer_ratios
            }
        # of a block-causal base, tokens of later blocks teach only a teacher that sees them
        views = {"": nullcontext} | (
            {} if policy.block_size is None else {SEES_ALL: lambda: policy.attending("all")}
        )
        for name, shown in rows.items():
            for suffix, view in views.items():
                with view():
                    found = self._shown(policy, greedy, shown)
                for problem, score in zip(problems, found, strict=True):
                    scores[problem.id][name + suffix] = score
        return scores

    def _shown(
        self, policy: LlmPolicy, items: Sequence[SelectedRollout], shown: Sequence[Tensor]
    ) -> list[float]:
        """Return the scores of greedy answers that see these tokens [G] in advance."""
        requests = [
            GenerationRequest(item.problem.id, 0, item.best.prompt_ids, 0, ids)
            for item, ids in zip(items, shown, strict=True)
        ]
        answers = denoise_all(policy, requests, decoding(self.params.sampling))
        after_eos = self.params.sampling.text_after_eos
        return [
            self.task.verify(
                item.problem, policy.text.decode(answer.completion_ids, after_eos)
            ).score
            for item, answer in zip(items, answers, strict=True)
        ]

    def _collect(
        self, policy: LlmPolicy, problems: list[Problem], tries: CollectorConfig
    ) -> list[SelectedRollout]:
        return RolloutCollector(
            self.task, self.params.sampling, tries, self.model.prompt_style, 0
        ).collect(policy, problems, 0)


def _draw(table: dict[str, dict[str, Any]], title: str, path: Path) -> None:
    """Draw accuracy with its 95% interval, one bar for each row of the table."""
    figure, axes = axes_of(1, 1, 3.6)
    axis, bars = axes[0][0], list(table)
    heights = [row["accuracy"] for row in table.values()]
    spread = [[abs(row["interval"][i] - row["accuracy"]) for row in table.values()] for i in (0, 1)]
    colours = [STUDENT if name.startswith("pass@") else TEACHER for name in table]
    axis.bar(bars, heights, yerr=spread, color=colours, capsize=4)
    style = {"ha": "center", "va": "center", "color": "white", "weight": "bold"}
    for index, value in enumerate(heights):
        axis.text(index, value / 2, f"{100 * value:.1f}%", **style)
    axis.set(ylabel="accuracy, with 95% interval")
    axis.set_title(title, loc="left", fontsize=10)
    percent_axis(axis)
    save_figure(figure, path)
