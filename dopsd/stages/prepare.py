"""`dopsd prepare --task sudoku`: problems of every split as JSON lines in data/<task>/, and what they are asked with."""

from __future__ import annotations

from dopsd.config import Params
from dopsd.progress import log
from dopsd.tasks import load_task
from dopsd.tasks.storage import DATA, PROMPT, write_problems, write_prompt


def run(params: Params, task_name: str) -> None:
    task = load_task(task_name, params.data)
    for split, problems in task.build().items():
        write_problems(DATA / task_name / f"{split}.jsonl", problems)
        log(
            f"{task_name}: {len(problems)} {split} problems, {len({p.answer for p in problems})} distinct answers"
        )
    write_prompt(DATA / task_name / PROMPT, task.instructions)
