"""Find what a run can resume from in a training folder, and link it into the run's own folder.

A run may resume from the checkpoints and log rows that the same run with another length, other
checkpoint updates or other collapse settings would have written as well.
"""

from __future__ import annotations

import json
import math
import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dopsd.core.files import link
from dopsd.core.paths import LOG
from dopsd.models.adapter_files import write_digests
from dopsd.training import checkpoint
from dopsd.training.checkpoint import update_of
from dopsd.training.early_end import WATCHING, collapse_update, starvation_update, watched_again

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dopsd.training.config import TrainConfig

RECORD = "run.json"  # which settings, inputs and code trained a folder
COUNTS = ("count/collects", "count/empty_collects")  # numbers that every row of a log has
KEYS = {"settings", "ends", "inputs", "code", "history", "cells"}  # of run.json


def record_of(folder: Path) -> dict[str, Any]:
    """Read a folder's run.json; return an empty dict if it is missing or damaged."""
    record = object_of(folder / RECORD)
    return record if record.keys() >= KEYS else {}


def object_of(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty dict if it is missing or damaged."""
    with suppress(OSError):
        return _object(path.read_bytes())
    return {}


def _object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Resumable:
    """Checkpoints that a run can continue from, or end with, and the log up to the last one."""

    folder: Path
    steps: list[Path]  # checkpoints, oldest first
    rows: list[dict[str, Any]]  # of the log
    lacking: list[int]  # updates whose checkpoints these settings keep and the folder lacks

    @property
    def is_logged(self) -> bool:
        """Whether the log has every update."""
        return [row["update"] for row in self.rows] == [*range(1, self.update + 1)]

    @property
    def update(self) -> int:
        """The last checkpoint's update; 0 without checkpoints."""
        return update_of(self.steps[-1]) if self.steps else 0


def steps_of(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a run by update, without checking them."""
    return sorted(folder.glob("step-??????"))


def resumable(
    folder: Path, made_with: dict[str, Any], settings: TrainConfig, is_whole: bool
) -> Resumable:
    """Return what a run of these settings can resume from in a folder.

    Args:
        folder: a training folder.
        made_with: the folder's values of `run_settings.ENDS`.
        settings: section `train` of the run.
        is_whole: end before the first checkpoint that these settings keep and the folder lacks.
    """
    sound = list(takewhile(lambda step: checkpoint.fault(step) is None, steps_of(folder)))
    last_update = update_of(sound[-1]) if sound else 0
    rows = [
        row
        for row in _rows(log_of(sound[-1]) if sound else folder / LOG)
        if row["update"] <= last_update
    ]
    if sound and any(
        made_with.get(name, vars(settings)[name]) != vars(settings)[name] for name in WATCHING
    ):
        rows = watched_again(rows, _state(sound[-1]), settings)
    end = min(
        settings.updates,
        collapse_update(rows) if settings.stop_on_collapse else math.inf,
        starvation_update(rows, settings),
    )
    lacking = sorted(
        {*range(settings.checkpoint_every, last_update + 1, settings.checkpoint_every)}
        - {*map(update_of, sound)}
    )
    if is_whole and lacking:
        end = min(end, lacking[0] - 1)
    patience = made_with.get("max_empty_collects", settings.max_empty_collects)
    is_same = patience == settings.max_empty_collects
    steps = [
        step
        for step in sound
        if update_of(step) <= end and (is_same or _state(step)["empty_in_a_row"] <= patience)
    ]
    while (
        steps
        and not (steps[-1] / "trainer.safetensors").is_file()
        and update_of(steps[-1]) != settings.updates
    ):
        steps.pop()
    update = update_of(steps[-1]) if steps else 0
    return Resumable(
        folder,
        steps,
        [row for row in rows if row["update"] <= update],
        [missing for missing in lacking if missing <= update],
    )


def _state(step: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((step / "state.json").read_text(encoding="utf-8"))
    return state


def _rows(log_file: Path) -> list[dict[str, Any]]:
    """Read the rows before the first damaged line; a process may still write the last line."""
    lines = log_file.read_bytes().split(b"\n")[:-1] if log_file.is_file() else []
    return list(takewhile(_is_row, map(_object, lines)))


def _is_row(row: dict[str, Any]) -> bool:
    return type(row.get("update")) is int and all(
        isinstance(row.get(name), int | float) for name in COUNTS
    )


def is_finished(folder: Path, settings: TrainConfig) -> bool:
    """Return whether a folder holds a finished run: all updates, and no file for resuming."""
    steps = steps_of(folder)
    if (
        not steps
        or update_of(steps[-1]) != settings.updates
        or (steps[-1] / "trainer.safetensors").is_file()
    ):
        return False
    kept_steps = [
        step
        for step in steps
        if update_of(step) % settings.checkpoint_every == 0 or step == steps[-1]
    ]
    return all(checkpoint.fault(step) is None for step in kept_steps)


def bring(source: Resumable, folder: Path) -> None:
    """Replace a folder's checkpoints and log by those of `source`.

    Files are linked, not copied. An interrupted call can be repeated.
    """
    empty(folder)
    (folder / LOG).write_text(_text(source.rows), encoding="utf-8")
    for step in source.steps:
        tmp = folder / f"{step.name}.tmp"
        shutil.copytree(step, tmp, copy_function=link)
        if (tmp / LOG).exists():
            (tmp / LOG).unlink()  # a link to the other folder's file, which must not change
            (tmp / LOG).write_text(
                _text(row for row in source.rows if row["update"] <= update_of(step)),
                encoding="utf-8",
            )
            write_digests(tmp)
        tmp.rename(folder / step.name)


def _text(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)


def log_of(step: Path) -> Path:
    """Return a checkpoint's own copy of the log, or the folder's log if it has none any more."""
    return step / LOG if (step / LOG).is_file() else step.parent / LOG


def empty(folder: Path) -> None:
    """Remove a folder's checkpoints and log, and keep its locks."""
    for step in folder.glob("step-*"):
        shutil.rmtree(step)
    (folder / LOG).unlink(missing_ok=True)
