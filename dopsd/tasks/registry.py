"""Tasks: folders of dopsd/tasks, and packages of the entry points `dopsd.tasks`."""

from __future__ import annotations

from dopsd.core.registry import Registry
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.common.task import Task

TASKS = Registry("dopsd.tasks", "task", TaskConfig)


def load_task(name: str, config: TaskConfig) -> Task:
    """Return the task `name` with its settings; `make` in the folder's task.py builds it.

    Raises:
        DopsdError: if there is no such task, or its folder is incomplete.
    """
    task: Task = TASKS.make(name, "task.make", Task, config=config)
    return task
