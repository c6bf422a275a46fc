"""`dopsd prepare --task sudoku`: write the problems of every split to data/<task>/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.files import digest, object_in, write_json
from dopsd.core.fingerprint import sha256
from dopsd.tasks.common.storage import DATA, data_files, write_splits
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.config.params import Params

PREPARED = "prepared.json"  # beside the problems: of which settings they are


def run(params: Params, task_name: str) -> None:
    """Write <split>.jsonl for every split, and prompt.txt with the task's instructions."""
    _write(params, task_name)
    prepare_watched(params)


def prepare_watched(params: Params) -> None:
    """Write the problems of watched tasks that are missing, or were made by other settings."""
    for task in sorted({*params.evaluate.watch} - {*params.matrix.tasks}):
        found = object_in(DATA / task / PREPARED) or {}
        if found.get("settings") != _settings_of(params, task)["settings"]:
            _write(params, task)


def _write(params: Params, task: str) -> None:
    write_splits(load_task(task, params.data.tasks[task]))
    write_json(DATA / task / PREPARED, _settings_of(params, task))


def _settings_of(params: Params, task: str) -> dict[str, str]:
    """Return digests of what decides a task's problems, and of the problems there."""
    used = params.data.tasks[task].model_dump(exclude={"model", "pretrain", "scoring"}, mode="json")
    files = sorted((DATA / task).glob("*.jsonl"))
    return {"settings": digest(used), "files": digest([sha256(path) for path in files])}


def changed_since(params: Params, task: str) -> str | None:
    """Return a note if the problems on disk were prepared with other settings; None if not known.

    DVC's stages prepare them again by themselves. It may also have fetched others than the last
    that were made here, of which nothing is known.
    """
    path = DATA / task / PREPARED
    found = object_in(path)
    if not found or not data_files(task, "train")[0].is_file():
        return None
    now = _settings_of(params, task)
    if found.get("files") != now["files"] or found.get("settings") == now["settings"]:
        return None
    return (
        f"data.{task} changed since `dopsd prepare --task {task}`, and {path.parent} has the"
        " old problems; run it, or `dopsd repro`"
    )
