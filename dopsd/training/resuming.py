"""What a training folder holds that a run of these settings would have come to as well, and copying
that without copies.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dopsd.core.paths import LOG
from dopsd.training import checkpoint
from dopsd.training.checkpoint import update_of
from dopsd.training.early_end import WATCHING, collapse_update, starvation_update, watched_again

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dopsd.training.config import TrainConfig

RECORD = "run.json"
COUNTS = ("count/collects", "count/empty_collects")  # of every row of a log
KEYS = {"settings", "ends", "inputs", "code", "history", "cells"}


def record_of(folder: Path) -> dict[str, Any]:
    """The folder's run.json; nothing, where that is missing or damaged."""
    record = object_of(folder / RECORD)
    return record if record.keys() >= KEYS else {}


def object_of(path: Path) -> dict[str, Any]:
    """The JSON object in a file; nothing, where that is missing or damaged."""
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
    """Checkpoints of a folder and the log's rows up to the last of them, which can be continued or
    is the end.
    """

    folder: Path
    steps: list[Path]
    rows: list[dict[str, Any]]
    lacking: list[int]  # updates whose checkpoints these settings keep, and the folder's did not

    @property
    def is_logged(self) -> bool:
        """Whether the log has every update."""
        return [row["update"] for row in self.rows] == [*range(1, self.update + 1)]

    @property
    def update(self) -> int:
        return update_of(self.steps[-1]) if self.steps else 0


def steps_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-??????"))


def resumable(
    folder: Path, made_with: dict[str, Any], settings: TrainConfig, is_whole: bool
) -> Resumable:
    """What `folder`, made with other values of layout.ENDS, has for these settings; is_whole: none
    of its checkpoints lacks.
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
    state: dict[str, Any] = json.loads((step / "state.json").read_text())
    return state


def _rows(log_file: Path) -> list[dict[str, Any]]:
    """Whole lines up to the first damaged one: another process may be writing the last one."""
    lines = log_file.read_bytes().split(b"\n")[:-1] if log_file.is_file() else []
    return list(takewhile(_is_row, map(_object, lines)))


def _is_row(row: dict[str, Any]) -> bool:
    return type(row.get("update")) is int and all(
        isinstance(row.get(name), int | float) for name in COUNTS
    )


def is_finished(folder: Path, settings: TrainConfig) -> bool:
    """Whether it has all updates, and no optimizer any more to load for that."""
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
    """Put these checkpoints and this log in the place of the folder's own; ended half way, it can
    be done again.
    """
    empty(folder)
    (folder / LOG).write_text(_text(source.rows))
    for step in source.steps:
        tmp = folder / f"{step.name}.tmp"
        shutil.copytree(step, tmp, copy_function=_link)
        if (tmp / LOG).exists():
            (tmp / LOG).unlink()  # a second name of the other folder's file
            (tmp / LOG).write_text(
                _text(row for row in source.rows if row["update"] <= update_of(step))
            )
            checkpoint.write_digests(tmp)
        tmp.rename(folder / step.name)


def _text(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)


def log_of(step: Path) -> Path:
    """The log that a checkpoint brings under its digests; those that can no longer be continued
    have none.
    """
    return step / LOG if (step / LOG).is_file() else step.parent / LOG


def empty(folder: Path) -> None:
    """Remove checkpoints and log; locks stay."""
    for step in folder.glob("step-*"):
        shutil.rmtree(step)
    (folder / LOG).unlink(missing_ok=True)


def _link(source: str, target: str) -> None:
    """A second name for the file, which nothing writes into again; a copy where the disk has no
    such names.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
