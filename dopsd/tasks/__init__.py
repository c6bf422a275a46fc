"""load_task(): the Task behind a name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dopsd.types import Task

if TYPE_CHECKING:
    from dopsd.config import Data


def load_task(name: str, data: Data) -> Task:
    """The task named `name`: its file dopsd/tasks/NAME.py has the class, config section data.NAME its settings."""
    module = import_module(f"dopsd.tasks.{name}")
    return vars(module)[name.title().replace("_", "")](vars(data)[name])
