"""`dopsd prepare --task sudoku`: write the problems of every split to data/<task>/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.progress import log
from dopsd.tasks.common.storage import DATA, PROMPT, write_problems, write_prompt
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task_name: str) -> None:
    """Write <split>.jsonl for every split, and prompt.txt with the task's instructions."""
    task = load_task(task_name, vars(params.data)[task_name])
    for split, problems in task.build().items():
        write_problems(DATA / task_name / f"{split}.jsonl", problems)
        log(
            f"{task_name}: {len(problems)} {split} problems, {len({p.answer for p in problems})}"
            " distinct answers"
        )
    write_prompt(DATA / task_name / PROMPT, task.instructions)
