"""Read what a run records about itself: progress of stages, accuracies, and why a stage failed."""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dopsd.core.error_codes import Code
from dopsd.core.files import WORK
from dopsd.core.progress import FEWEST, STEADY

if TYPE_CHECKING:
    from dopsd.core.paths import RunKey


class StageProgress(NamedTuple):
    """How far a stage is."""

    share: float  # from 0 to 1
    text: str  # units, rate and time left; of a stalled stage, for how long and what to do
    is_stalled: bool = False  # no update for ten times the usual time (dopsd.core.progress)


def clock(seconds: float) -> str:
    """Format seconds as 1:05, or 1:02:05 from one hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def stage_progress(stage: str, since: float) -> StageProgress | None:
    """Return the progress of a stage from work/<stage>.json, which the stage keeps rewriting.

    Args:
        stage: Name of the stage.
        since: When the stage started; an older file is that of another run.

    Returns:
        The progress; None if the stage has written none, or has nothing to do.
    """
    file = WORK / f"{stage}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = file.stat().st_mtime
        if written >= since and (state := json.loads(file.read_text(encoding="utf-8")))["total"]:
            return _described(state, time.time() - written)
    return None


def _described(state: dict[str, Any], age: float) -> StageProgress:
    """Return the progress that a stage wrote `age` seconds ago."""
    done, total, rate = state["done"], state["total"], state["rate"]
    if done < total and age > state.get("stalled_after", math.inf):
        return StageProgress(done / total, f"{done} of {total}, {_stall(state, age)}", True)
    is_known = rate and state["steps"] >= STEADY
    left = f", {clock((total - done) / rate)} left" if is_known else ""
    return StageProgress(done / total, f"{done} of {total}, {rate:.2f}/s{left}")


def _stall(state: dict[str, Any], age: float) -> str:
    usual = f", usual are {state['usual']:.0f} s" if state["steps"] >= FEWEST else ""
    return (
        f"no update for {clock(age)}{usual}: look at the log; `dopsd cancel` saves what it can, and"
        " the next run continues"
    )


def accuracy(report: dict[str, Any]) -> str:
    """Format accuracy, 95% interval and number of problems of an evaluation."""
    low, high = (f"{100 * value:.1f}" for value in report["interval"])
    return f"{100 * report['accuracy']:.1f}% [{low}, {high}] on {report['n']} problems"


def newest_accuracy(split: str, since: float) -> str:
    """Return the newest accuracy on a split in work/eval/; empty if there is none yet.

    Args:
        split: The selection split.
        since: When the run started; older evaluations are those of other runs.
    """
    changed = {path: path.stat().st_mtime for path in (WORK / "eval").glob("*.json")}
    recent = [path for path in changed if changed[path] >= since]  # earlier ones are never read
    for path in sorted(recent, key=lambda path: changed[path], reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(path.read_text(encoding="utf-8"))["value"]
            if report["split"] == split:
                return accuracy(report)
    return ""


def exit_code(lines: list[str]) -> int:
    """Return the exit code of DVC's stage, or 0; DVC prints that code, and itself ends with 255."""
    codes = [match[1] for line in lines if (match := re.search(r"exited with (-?\d+)", line))]
    return int(codes[-1]) if codes else 0


def reason(lines: list[str]) -> str:
    """Return dopsd's last message in the output of a command, else the last line."""
    messages = [line.removeprefix("dopsd: ") for line in lines if line.startswith("dopsd: ")]
    return (messages or lines or ["no output"])[-1]


def split_code(message: str) -> tuple[str, Code]:
    """Return the message of a failed stage without its code, and the code (default: RUN_FAILED)."""
    match = re.search(r" \((D\d{3})\)", message)
    with suppress(ValueError):
        if match:
            return message.replace(match[0], "", 1), Code(match[1])
    return message, Code.RUN_FAILED


def saved(lines: list[str]) -> str:
    """Return what stopped training says that it saved; empty if no training was stopped."""
    pattern = r"saved at update \d+ in \S+?(?=;|$)|no update was finished, so nothing is saved"
    outcomes = [match[0] for line in lines if (match := re.search(pattern, line))]
    return outcomes[-1] if outcomes else ""


def dvc_stage(name: str, run_keys: list[RunKey]) -> str:
    """Return a stage of DVC as the view names it: `train@sudoku-d_opsd-0` is train sudoku/d_opsd/0.

    Args:
        name: DVC's name of the stage.
        run_keys: Runs of the matrix.
    """
    stage, _, item = name.partition("@")
    keys = {run_key.stage: str(run_key) for run_key in run_keys}
    return f"{'base' if stage == 'evaluate_base' else stage} {keys.get(item, item)}".strip()
