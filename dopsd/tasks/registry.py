"""Tasks: folders of dopsd/tasks, and packages of the entry points `dopsd.tasks`."""

from collections.abc import Iterable, Mapping

from dopsd.core.registry import Registry
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.common.storage import DATA, PROMPT, write_splits
from dopsd.tasks.common.task import Task

CUSTOM = "custom"  # the folder of every task that params.yaml defines with `type: custom`


TASKS = Registry("dopsd.tasks", "task", TaskConfig, shared=("common", CUSTOM))
FOLDERS = Registry("dopsd.tasks", "task", TaskConfig)  # those of TASKS, and CUSTOM


def package_of(name: str) -> str:
    """Return the dotted name of a task's package: its own, or that of CUSTOM."""
    return FOLDERS.packages[name if name in TASKS.packages else CUSTOM]


def load_task(name: str, config: TaskConfig) -> Task:
    """Return the task `name` with its settings; `make` in the folder's task.py builds it."""
    task: Task
    if isinstance(config, FOLDERS.config_class(CUSTOM)):
        task = FOLDERS.make(CUSTOM, "task.make", Task, config=config, task=name)
    else:
        task = TASKS.make(name, "task.make", Task, config=config)
    return task


def is_graded(name: str, config: TaskConfig) -> bool:
    """Return whether a task's scores are partial, without the programs that score its answers."""
    if isinstance(config, FOLDERS.config_class(CUSTOM)):
        return bool(vars(config)["verifier"].is_graded)
    return load_task(name, config).graded


def write_missing(configs: Mapping[str, TaskConfig], names: Iterable[str]) -> None:
    """Write the problems of those of these tasks whose problems are missing."""
    for name in names:
        if not (DATA / name / PROMPT).is_file():  # the last file that is written
            write_splits(load_task(name, configs[name]))


RULES = {"published": "by the published rules", "strict": "by the strict rules"}  # of scoring


def score_name(task: str, score: str) -> str:
    """Return in words what a score of a task's verifier counts."""
    own = FOLDERS.metrics(task if task in TASKS.packages else CUSTOM)
    plain = own[score].plain if score in own else ""
    return RULES.get(score) or plain or score.replace("_", " ")
