"""`dopsd prepare --task sudoku`: write the problems of every split to data/<task>/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.progress import log
from dopsd.tasks.common.storage import DATA, PROMPT, write_problems, write_prompt
from dopsd.tasks.common.task import Task
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task_name: str) -> None:
    """Write <split>.jsonl for every split, and prompt.txt with the task's instructions.

    The problems of the tasks of `evaluate.watch` are made too, where they are missing: no stage of
    DVC makes those of a task that is not in the matrix.
    """
    write_splits(load_task(task_name, params.data.tasks[task_name]))
    for name in params.evaluate.watch:
        if name not in params.matrix.tasks and not (DATA / name / "test.jsonl").is_file():
            write_splits(load_task(name, params.data.tasks[name]))


def write_splits(task: Task) -> None:
    """Write the problems of every split, and the task's instructions, to data/<task>/."""
    for split, problems in task.build().items():
        write_problems(DATA / task.name / f"{split}.jsonl", problems)
        log(
            f"{task.name}: {len(problems)} {split} problems, {len({p.answer for p in problems})}"
            " distinct answers"
        )
    write_prompt(DATA / task.name / PROMPT, task.instructions)
