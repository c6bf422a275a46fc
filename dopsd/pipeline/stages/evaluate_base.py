"""`dopsd evaluate-base --task sudoku`: score the base model on the selection split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.files import write_json
from dopsd.core.paths import RUNS
from dopsd.core.progress import is_main_rank, log
from dopsd.core.statistics import ends, percent
from dopsd.evaluation.evaluator import Evaluator

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task_name: str) -> None:
    """Score the base with the selecting protocol, and write runs/<task>/base.json."""
    name = params.select.protocol
    evaluator = Evaluator(params.evaluation(task_name), params.select.split)
    ((report,),) = evaluator.reports("evaluate_base", [None], params.evaluate.protocols[name])
    if is_main_rank():
        write_json(RUNS / task_name / "base.json", {name: _figures(report)})
    for line in base_in_words(report, task_name):
        log(f"evaluate_base: {line}")


def base_in_words(report: dict[str, Any], task_name: str) -> list[str]:
    """Return the base's score, and what to do where nothing can be learned from its answers."""
    accuracy = f"{percent(report['accuracy'])}% {ends(report['interval'])}"
    lines = [f"base scores {accuracy} on {report['n']} {report['split']} problems"]
    if not report["accuracy"]:
        lines.append(
            "no answer scores above 0, and methods that learn from their own answers, such as"
            " d_opsd, would find nothing to learn from. `dopsd sample --task"
            f" {task_name}` shows one answer; take easier rows, a base that knows the task, a"
            " verifier with partial scores, or matrix.methods=[sft] with solutions (of a task of"
            f" your own: data.{task_name}.solution); a base that you adapted may need more updates"
            " (adapt.learn.train.updates); d_opsd with keep: all learns from wrong answers too"
        )
    return lines


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers that `dvc metrics show` fits on a line, without those of problems.

    It shows no lists, such as `measured_on`.
    """
    low, high = report["interval"]
    names = ("accuracy", "whole", "n", "steps", "measured_on")
    figures: dict[str, Any] = {name: report[name] for name in names}
    figures |= report["figures"]
    return figures | {"low": low, "high": high}
