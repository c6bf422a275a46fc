"""`dopsd task check NAME` and `dopsd task list`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dopsd.config.data_files import task_files
from dopsd.config.named_files import missing
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown
from dopsd.pipeline.own_task import answers
from dopsd.pipeline.own_task.findings import Findings
from dopsd.pipeline.own_task.lengths import Lengths
from dopsd.pipeline.own_task.rows import check_splits, read
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.storage import DATA
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.task import CustomTask

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params
    from dopsd.tasks.common.config import TaskConfig

PIPE_WIDTH = 160  # columns of a table that does not go to a terminal
SPLITS = ("train", "validation", "test")


def check(params: Params, name: str, answers_file: Path | None) -> None:
    """Print what a task's rows look like to a model and its verifier, with a verdict.

    Args:
        params: All settings.
        name: A task that section data defines.
        answers_file: A file of answers to score too; None: none.

    Raises:
        DopsdError: if the task is unknown, a row is wrong, or the task cannot be trained.
    """
    config = params.data.custom.get(name)
    if config is None:
        names = list(params.data.custom) or ["none yet; docs/own-task.md shows how to add one"]
        raise DopsdError(unknown(f"task check {name}", names), code=Code.UNKNOWN_NAME)
    if lines := missing(task_files(params, name)):
        raise DopsdError([f"{line}: no such file" for line in lines], code=Code.NAMED_FILE_MISSING)
    task, findings = CustomTask(name, config), Findings()
    rows = read(task)
    texts = [answers.shortest(task, row.problem.answer) for row in rows]
    Lengths(params, task, rows).check(texts, findings)
    check_splits(task, rows, findings)
    answers.check_references(task, rows, findings)
    answers.check_others(task, rows, findings)
    answers.check_solutions(task, rows, findings)
    if answers_file:
        answers.check_file(task, rows, answers_file, findings)
    sys.stdout.write("\n".join(findings.lines[1:]) + "\n\n")
    if findings.faults:
        raise DopsdError(
            [f"{name}: cannot be trained: {fault}" for fault in findings.faults],
            code=Code.NOT_TRAINABLE,
        )
    sys.stdout.write(
        f"{name}: the rows, prompts and verifier fit; whether the base can answer: `dopsd prepare"
        f" --task {name}`, then `dopsd evaluate_base --task {name}`\n"
    )


def list_tasks(params: Params) -> None:
    """Print a table of all tasks: where they come from, their problems, how they are scored."""
    table = Table("task", "type", "source", *SPLITS, "verifier", box=SIMPLE)
    for name, config in params.data.tasks.items():
        is_custom = isinstance(config, CustomTaskConfig)
        kind = "custom" if is_custom else "built in"
        verifier = config.verifier.type if isinstance(config, CustomTaskConfig) else "its own"
        sizes = [_size(name, config, split) for split in SPLITS]
        source = vars(config).get("train")
        path = source.path if isinstance(source, Source) else "made by dopsd"
        table.add_row(Text(name), kind, Text(path), *sizes, verifier)
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    console.print(table)


def _size(name: str, config: TaskConfig, split: str) -> str:
    """Return the number of prepared problems, else the number that is set, else a dash."""
    path = DATA / name / f"{split}.jsonl"
    if path.is_file():
        return str(len(path.read_bytes().splitlines()))
    value = vars(config)[split]
    return f"{value}" if isinstance(value, int) else "-"
