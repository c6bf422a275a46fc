"""The local files that params.yaml names, and those of them that are not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.tasks.common.config import Source
from dopsd.training.origin import place
from dopsd.training.start import named_folder, start_file

if TYPE_CHECKING:
    from dopsd.config.params import Params

FILES = (".jsonl", ".json", ".csv", ".parquet")  # a source that ends so is a file, not a hub name


def missing_files(params: Params) -> list[str]:
    """Return the missing files that the matrix's tasks, methods and models need, as `key: file`."""
    files: dict[str, str] = {}
    for task in params.matrix.tasks:
        files |= task_files(params, task)
    for method in params.matrix.methods:
        files |= _source_files(f"method.{method}", vars(vars(params.method)[method]))
    files |= {
        f"train.start_from of {run.key.method}": str(folder / start_file(run))
        for run in params.runs
        if (folder := named_folder(run))
    }
    for task in params.matrix.tasks:
        overrides, path = params.data.tasks[task].model, params.model_of(task).path
        is_own = overrides is not None and overrides.path is not None
        if Path(path) != place(task) if is_own else not params.pretrain.tasks:
            files[f"data.{task}.model.path" if is_own else "model.path"] = f"{path}/config.json"
    return missing(files)


def missing(files: dict[str, str]) -> list[str]:
    """Return those of these files that are not there, as `key: file`."""
    return [
        f"{key}: {file}"
        for key, file in files.items()
        if not os.path.isfile(file)  # noqa: PTH113  # Path.is_file raises for a name that is too long
    ]


def task_files(params: Params, task: str) -> dict[str, str]:
    """Return the local files that a task's section names, by key."""
    section = params.data.tasks[task]
    files = {f"data.{task}.{key}": name for key, name in section.files.items()}
    return files | _source_files(f"data.{task}", vars(section))


def _source_files(key: str, section: dict[str, Any]) -> dict[str, str]:
    """Return the local files of a section's datasets by key, without names on the hub."""
    return {
        f"{key}.{name}.path": value.path
        for name, value in section.items()
        if isinstance(value, Source) and Path(value.path).suffix in FILES
    }
