"""Continue a run: find the checkpoints that it can continue from, and put them into its folder.

A run may continue from what the same run with another length, or other checkpoint updates, would
have written as well: its folder starts from the checkpoints and log rows of that one. Checkpoints
of other code need a decision.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import TEMPORARY, Code, DopsdError, unknown
from dopsd.core.files import ASIDE, digest, fresh_folder, link, parse_object, read_json, write_json
from dopsd.core.machine import package_version
from dopsd.core.paths import LOG
from dopsd.core.progress import log
from dopsd.core.tables import read_log, write_table
from dopsd.models.adapter_files import MANIFEST, copy_checkpoint, write_digests
from dopsd.training import checkpoint
from dopsd.training.checkpoint import folders, update_of
from dopsd.training.run_identity import IDENTITY, UNKNOWN, RunIdentity, read_identity

if TYPE_CHECKING:
    from dopsd.training.config import TrainConfig

ANSWERS = ("stop", "continue", "anew")  # what to do with checkpoints of other code
OTHER_CODE = "DOPSD_OTHER_CODE"  # environment variable with an answer, for DVC, flows and clusters


def answer_of(flag: str | None) -> str:
    """Return what to do with a run that other code began.

    Args:
        flag: the command line's answer; None reads DOPSD_OTHER_CODE, whose default is stop.
    """
    answer = flag or os.environ.get(OTHER_CODE) or "stop"
    if answer not in ANSWERS:
        raise Code.VARIABLE.error(unknown(f"{OTHER_CODE}: {answer}", ANSWERS))
    return answer


def prepare_folder(identity: RunIdentity, answer: str) -> None:
    """Put the checkpoints that a run can continue from into its folder, and write run.json.

    Args:
        answer: what to do with checkpoints of other code, one of ANSWERS.
    """
    scratch, code = identity.folder, identity.code
    candidates = _candidates(identity)
    same_code = [
        candidate for candidate in candidates if read_identity(candidate.folder).get("code") == code
    ]
    if same_code or read_identity(scratch).get("code") == code:
        if same_code and answer == "anew":
            log(
                f"train: --anew: ignored, because this code made the last updates in {scratch};"
                " move that folder away to start from update 0"
            )
        return _begin(identity, _furthest(same_code, scratch))
    best = _furthest(candidates, scratch)
    if best and answer == "stop":
        raise Code.OTHER_CODE.error(_question(identity, best))
    _begin(identity, None if answer == "anew" else best)


def _furthest(candidates: list[Resumable], scratch: Path) -> Resumable | None:
    return max(
        candidates,
        key=lambda candidate: (candidate.update, candidate.folder == scratch),
        default=None,
    )


def _candidates(identity: RunIdentity) -> list[Resumable]:
    """Return what the run can continue from: its own folder, and folders with more updates.

    These are folders of the run with other lengths and the same history.
    """
    run, scratch = identity.run, identity.folder
    settings, known = run.train, read_identity(scratch)
    current = resumable(scratch, settings, is_whole=False)
    candidates = [current] if current.update else []
    for folder in identity.of_any_length:
        other = read_identity(folder)
        is_further = max(map(update_of, folders(folder)), default=0) > current.update
        if (
            folder == scratch
            or not other
            or not is_further
            or (current.update and other["history"] != known.get("history"))
        ):
            continue
        candidate = resumable(
            folder,
            settings,
            is_whole=str(run.key) not in other["cells"],
        )
        if candidate.update > current.update and candidate.is_logged:
            candidates.append(candidate)
        else:
            log(
                f"train: {folder} has more updates, but no checkpoint that a run of"
                f" {settings.updates} updates can start from"
            )
    return candidates


def _question(identity: RunIdentity, best: Resumable) -> str:
    old_code, code = read_identity(best.folder).get("code", {}), identity.code
    changed_packages = sorted(
        name for name in old_code | code if old_code.get(name) != code.get(name)
    )
    changes = changed_packages[0] + (
        f" and {len(changed_packages) - 1} more changed" if changed_packages[1:] else " changed"
    )
    changes = changes if old_code else f"no {IDENTITY} tells which"
    return (
        f"train: {best.folder} is at update {best.update}, trained by other code ({changes});"
        f" `dopsd train {' '.join(identity.run.key.words)} --continue` continues with this code,"
        f" --anew starts from update 0; under DVC, a flow or a cluster set {OTHER_CODE}=continue or"
        " anew"
    )


def _set_aside(folder: Path) -> None:
    """Move a folder's contents aside, except the lock, which this process holds."""
    if not folders(folder):
        return
    number = 1 + len([*ASIDE.glob(f"{folder.name}.*")])
    target = ASIDE / f"{folder.name}.{number}"
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name != "lock":
            path.rename(target / path.name)
    log(f"train: starting from update 0; the old checkpoints are in {target} until `dopsd clean`")


def _begin(identity: RunIdentity, best: Resumable | None) -> None:
    """Bring the checkpoints to continue from into the folder, then write run.json."""
    scratch, code, name = identity.folder, identity.code, str(identity.run.key)
    known = read_identity(best.folder if best else scratch)
    # checkpoints of another folder: the same run with another number of updates
    if best and best.folder != scratch:
        write_json(scratch / IDENTITY, known)  # first, so that the checkpoints' origin is known
        link_checkpoints(best, scratch)
        log(f"train: {scratch} starts from update {best.update} of {best.folder}")
    owners = known.get("cells", []) if best and best.folder == scratch else []
    if best and best.lacking and name not in owners:
        log(
            f"train: no checkpoints of updates {', '.join(map(str, best.lacking))}: the other run"
            " did not make them (train.checkpoint_every) or no longer has them (checkpoints.keep)"
        )
    # other code: begin anew, and note which code made which updates
    if not best and known.get("code") != code:
        _set_aside(scratch)
        clear(scratch)
        known = {}
    history = known.get("history", [{"update": 0, "code": UNKNOWN}] if best else [])
    if not history or history[-1]["code"] != digest(code):
        history = [
            *history,
            {
                "update": best.update if best else 0,
                "code": digest(code),
                "version": package_version("dopsd"),
            },
        ]
    # who the run is: what the next start compares
    owners = sorted({name, *(owners if best else known.get("cells", []))})
    new = {
        "settings": identity.settings,
        "ends": identity.ends,
        "inputs": identity.inputs,
        "code": code,
        "history": history,
        "cells": owners,
    }
    if new != read_identity(scratch):
        write_json(scratch / IDENTITY, new)


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


def resumable(folder: Path, settings: TrainConfig, is_whole: bool) -> Resumable:
    """Return what a run of these settings can resume from in a folder.

    Args:
        settings: section `train` of the run.
        is_whole: end before the first checkpoint that these settings keep and the folder lacks.
    """
    sound = list(takewhile(lambda step: checkpoint.fault(step) is None, folders(folder)))
    last_update = update_of(sound[-1]) if sound else 0
    rows = [
        row
        for row in _rows(checkpoint.log_of(sound[-1]) if sound else folder / LOG)
        if row["update"] <= last_update
    ]
    end = settings.updates
    lacking = sorted(
        {*range(settings.checkpoint_every, last_update + 1, settings.checkpoint_every)}
        - {*map(update_of, sound)}
    )
    if is_whole and lacking:
        end = min(end, lacking[0] - 1)
    steps = [step for step in sound if update_of(step) <= end]
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


def _rows(log_file: Path) -> list[dict[str, Any]]:
    """Read the rows before the first damaged line; a process may still write the last line."""
    lines = log_file.read_bytes().split(b"\n")[:-1] if log_file.is_file() else []
    rows: list[dict[str, Any]] = []
    for line in lines:
        try:
            row = parse_object(line, log_file)
        except DopsdError:
            break
        if type(row.get("update")) is not int:
            break
        rows.append(row)
    return rows


def is_done(identity: RunIdentity) -> bool:
    """Return whether this code has finished the run, so that nothing is left to train."""
    known, run = read_identity(identity.folder), identity.run
    is_ours = str(run.key) in known.get("cells", ())
    has_code = known.get("code") == identity.code
    return is_ours and has_code and is_finished(identity.folder, run.train)


def is_finished(folder: Path, settings: TrainConfig) -> bool:
    """Return whether a folder has the run's last update, and every checkpoint that is kept."""
    steps = folders(folder)
    if not steps or update_of(steps[-1]) != settings.updates:
        return False
    kept_steps = [
        step
        for step in steps
        if update_of(step) % settings.checkpoint_every == 0 or step == steps[-1]
    ]
    return all(checkpoint.fault(step) is None for step in kept_steps)


def link_checkpoints(source: Resumable, folder: Path) -> None:
    """Replace a folder's checkpoints and log by those of `source`.

    Files are linked, not copied. An interrupted call can be repeated.
    """
    clear(folder)
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


def clear(folder: Path) -> None:
    """Remove a folder's checkpoints and log, and keep its locks."""
    for step in folder.glob("step-*"):
        shutil.rmtree(step)
    (folder / LOG).unlink(missing_ok=True)


def write_stage_outputs(identity: RunIdentity) -> None:
    """Copy a finished run's checkpoints, log and counters to train/, train.csv and train.json.

    Timings and run ids are left out, so that equal runs give equal bytes.
    """
    run, scratch = identity.run, identity.folder
    out, every = run.key.folder / "train", run.train.checkpoint_every
    checkpoints = checkpoint.checkpoints(scratch)
    last_update, known_folders = (
        max((saved.update for saved in checkpoints), default=0),
        {saved.path for saved in checkpoints},
    )
    for folder in folders(scratch):
        if folder not in known_folders and (
            update_of(folder) % every == 0 or update_of(folder) > last_update
        ):
            raise Code.CHECKPOINTS_DIFFER.error(
                f"train: {folder} was damaged after saving; run the same command to repeat it",
                TEMPORARY,
            )
    with fresh_folder(out) as tmp:
        wanted = [c for c in checkpoints if c.update % every == 0 or c is checkpoints[-1]]
        for saved in wanted:
            copy_checkpoint(saved.path, tmp / saved.path.name)
        write_json(tmp / MANIFEST, {saved.path.name: saved.digest for saved in wanted})
    rows = [
        {k: v for k, v in row.items() if not k.startswith("time/")}
        for row in read_log(checkpoint.log_of(checkpoints[-1].path))
    ]
    write_table(out.with_suffix(".csv"), rows)
    # state.json also counts collects after the last update
    counts = read_json(checkpoints[-1].path / "state.json", "dopsd train")["counters"]
    # a run that was interrupted at its end, or was longer before, has such collects
    known = read_identity(scratch)
    if checkpoints[-1].update == known["ends"]["updates"]:
        counts = {
            name.removeprefix("count/"): value
            for name, value in rows[-1].items()
            if name.startswith("count/")
        }
    history = known["history"]
    write_json(
        out.with_suffix(".json"),
        {
            "fingerprint": scratch.name,
            "updates": checkpoints[-1].update,
            "code": history[-1]["code"],
            "first_code": history[0]["code"],
            **identity.start,
            **counts,
        },
    )
