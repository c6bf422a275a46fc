"""`dopsd pretrain --task sudoku`: train the embedded base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.tasks.common.config import TaughtTaskConfig
from dopsd.training.pretraining.pretrain import pretrain

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task: str) -> None:
    """Train base/<task>/ if absent; replace one that does not match only if the user allows it."""
    tasks = params.data.tasks
    if not isinstance(tasks[task], TaughtTaskConfig):
        taught = ", ".join(name for name in tasks if isinstance(tasks[name], TaughtTaskConfig))
        raise Code.NO_SOLUTIONS.error(
            f"--task {task}: no base is made for this task; there is {taught}"
        )
    pretrain(params.embedded_base(task), task, params.data.tasks[task])
