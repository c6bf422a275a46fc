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
from dopsd.training.collapse import CollapseDetector

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dopsd.training.config import TrainConfig

WATCHING = ("collapse_window", "collapse_drop", "collapse_errors")
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
        _collapsed(rows) if settings.stop_on_collapse else math.inf,
        _starved(rows, settings),
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


def watched_again(
    rows: list[dict[str, Any]], state: dict[str, Any], settings: TrainConfig
) -> list[dict[str, Any]]:
    """The rows as they had been with these settings of collapse_*, from the scores of all collects
    that a checkpoint keeps.
    """
    scores, squares = state["scores"], state["squares"]
    if (
        len(scores) != state["counters"]["collects"]
    ):  # the method's rollouts are not those of the policy in training
        return rows
    new_rows, previous_collects = [], 0
    for row in rows:
        num_collects = int(row["count/collects"])
        detectors = [
            detector_of(settings, scores[:n], squares[:n])
            for n in range(previous_collects + 1, num_collects + 1)
        ]
        means = [detector.means[-1] for detector in detectors if detector.means]
        new_row = {
            name: value for name, value in row.items() if name not in ("rolling_score", "collapsed")
        }
        new_row |= {"rolling_score": sum(means) / len(means)} if means else {}
        is_collapsed = detector_of(
            settings, scores[:num_collects], squares[:num_collects]
        ).is_collapsed
        new_rows.append(new_row | ({"collapsed": 1.0} if is_collapsed else {}))
        previous_collects = num_collects
    return new_rows


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


def detector_of(
    settings: TrainConfig, scores: list[float], squares: list[float]
) -> CollapseDetector:
    s = settings
    return CollapseDetector(
        s.collapse_window,
        s.collapse_drop,
        s.prompts_per_collect,
        s.collapse_errors,
        scores,
        squares,
    )


def _collapsed(rows: list[dict[str, Any]]) -> float:
    """The update after which a run ends that stops on collapse."""
    return next((row["update"] for row in rows if row.get("collapsed")), math.inf)


def _starved(rows: list[dict[str, Any]], settings: TrainConfig) -> float:
    """The update after which more than max_empty_collects in a row gave nothing."""
    in_a_row = collects = empty = last = 0
    for row in rows:
        new, new_empty = row["count/collects"] - collects, row["count/empty_collects"] - empty
        collects, empty = row["count/collects"], row["count/empty_collects"]
        in_a_row += new_empty
        if in_a_row > settings.max_empty_collects:
            return last
        if new > new_empty:
            in_a_row = 0
        last = row["update"]
    return math.inf


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
