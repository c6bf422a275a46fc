"""The files and checkpoints that params.yaml names, and what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.config.consistency import adapt_files, every_run, method_files, task_files
from dopsd.core.errors import Code, DopsdError
from dopsd.training.pretraining.origin import base_folder
from dopsd.training.start import checked_start

if TYPE_CHECKING:
    from dopsd.config.params import Params


def require_files(params: Params) -> None:
    """Refuse settings that name missing files, or checkpoints from which no run can start."""
    if lines := missing_files(params):
        raise Code.NAMED_FILE_MISSING.error(
            [f"{line}: no such file in {Path.cwd()}" for line in lines]
        )
    for fault in start_faults(params):
        raise fault


def start_faults(params: Params) -> list[DopsdError]:
    """Return why runs cannot start from what train.start_from names, as `dopsd train` says it."""
    faults: dict[str, DopsdError] = {}
    for run in every_run(params):
        try:
            checked_start(run)
        except DopsdError as error:
            faults.setdefault(str(error), error)
        except OSError as error:
            line = f"train.start_from: {error.strerror}: {run.train.start_from}; name another start"
            faults.setdefault(line, Code.PATH.error(line))
    return list(faults.values())


def missing_files(params: Params) -> list[str]:
    """Return the missing files that the matrix's tasks, methods and models need, as `key: file`."""
    files: dict[str, str] = {}
    for task in {*params.matrix.tasks, *params.evaluate.watch}:
        files |= task_files(params, task)
    for method in params.matrix.methods:
        files |= method_files(params, method)
    files |= adapt_files(params)
    for task in params.matrix.tasks:
        overrides, path = params.data.tasks[task].model, params.model_of(task).path
        is_own = overrides is not None and overrides.path is not None
        if params.adapt.tasks and not is_own:
            continue  # adapting makes it
        makers = [task] if is_own else params.pretrain.tasks
        if Path(path) not in [base_folder(maker, params.pretrain.block_size) for maker in makers]:
            files[f"data.{task}.model.path" if is_own else "model.path"] = f"{path}/config.json"
    return not_there(files)


def not_there(files: dict[str, str]) -> list[str]:
    """Return those of these files that are not there, as `key: file`."""
    return [
        f"{key}: {file}"
        for key, file in files.items()
        if not os.path.exists(file)  # noqa: PTH110  # Path.exists raises for a name that is too long
    ]
