"""load_task(): the Task behind a name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dopsd.types import Task

if TYPE_CHECKING:
    from dopsd.config import TasksConfig


def load_task(name: str, data: TasksConfig) -> Task:
    """The task named `name`: its file dopsd/tasks/NAME.py has `make`, config section data.NAME its settings."""
    return import_module(f"dopsd.tasks.{name}").make(vars(data)[name])
