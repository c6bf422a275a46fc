"""Tasks: folders of dopsd/tasks, and packages of the entry points `dopsd.tasks`."""

from typing import Any

from dopsd.core.registry import Registry
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.common.task import Task

CUSTOM, GYM = "custom", "reasoning_gym"  # types of tasks that params.yaml defines
GYM_NAME = "gym_"  # begins the name of a task of type GYM; gym_word_sorting needs no section
TASKS = Registry("dopsd.tasks", "task", TaskConfig, shared=("common", CUSTOM, GYM))
FOLDERS = Registry("dopsd.tasks", "task", TaskConfig)  # those of TASKS, and of the types


def type_of(name: str) -> str | None:
    """Return the type of a task that params.yaml defines, by its name; None if it is registered."""
    if name in TASKS.packages:
        return None
    return GYM if name.startswith(GYM_NAME) else CUSTOM


def package_of(name: str) -> str:
    """Return the dotted name of a task's package: its own, or that of its type."""
    return FOLDERS.packages[type_of(name) or name]


def load_task(name: str, config: TaskConfig) -> Task:
    """Return the task `name` with its settings; `make` in the folder's task.py builds it."""
    kind = type_of(name)
    more = {"task": name} if kind else {}
    task: Task = FOLDERS.make(kind or name, "task.make", Task, config=config, **more)
    return task


def is_graded(name: str, config: TaskConfig) -> bool:
    """Return whether a task's scores are partial, without the programs that score its answers."""
    if type_of(name):
        defined: Any = config  # both types of settings say it
        return bool(defined.is_graded)
    return load_task(name, config).graded


RULES = {"published": "by the published rules", "strict": "by the strict rules"}  # of scoring


def score_name(task: str, score: str) -> str:
    """Return in words what a score of a task's verifier counts."""
    own = FOLDERS.metrics(type_of(task) or task)
    plain = own[score].plain if score in own else ""
    return RULES.get(score) or plain or score.replace("_", " ")
