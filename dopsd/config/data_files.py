"""The local files of rows and instructions that sections of params.yaml name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.tasks.common.config import Source
from dopsd.tasks.custom.verifiers.config import watched

if TYPE_CHECKING:
    from dopsd.config.params import Params

FILES = (".jsonl", ".json", ".csv", ".parquet")  # a source that ends so is a file, not a hub name


def task_files(params: Params, task: str) -> dict[str, str]:
    """Return the local files that a task's section names, by key."""
    section = params.data.tasks[task]
    files = {f"data.{task}.{key}": name for key, name in section.files.items()}
    return files | _source_files(f"data.{task}", vars(section))


def method_files(params: Params, method: str) -> dict[str, str]:
    """Return the local files that a method's section names, by key."""
    return _source_files(f"method.{method}", vars(vars(params.method)[method]))


def _source_files(key: str, section: dict[str, Any]) -> dict[str, str]:
    """Return the local files of a section's datasets by key, without names on the hub."""
    return {
        f"{key}.{name}.path": value.path
        for name, value in section.items()
        if isinstance(value, Source) and Path(value.path).suffix in FILES
    }


def check_watched(params: Params) -> None:
    """Refuse files outside data/external, of which a change would make no stage run again.

    Raises:
        ValueError: with the first such file.
    """
    files: dict[str, str] = {}
    for task in params.data.tasks:
        files |= task_files(params, task)
    for method in vars(params.method):
        files |= method_files(params, method)
    for key, path in files.items():
        try:
            watched(path)
        except ValueError as error:
            raise ValueError(f"{key}: {path}: {error}; move it there") from error
