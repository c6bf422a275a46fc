"""Start a run in its folder, or prepare the folder to continue; other code needs a decision.

A run that differs only in its length, or in the checkpoints that it keeps, is the same run: its
folder starts from the checkpoints of the other length.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown
from dopsd.core.files import ASIDE, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.progress import log
from dopsd.training.checkpoint import update_of
from dopsd.training.resuming import RECORD, Resumable, bring, empty, record_of, resumable, steps_of
from dopsd.training.run_identity import UNKNOWN, code_of, digest
from dopsd.training.run_settings import input_files, scratch_folder, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.training.run_settings import RunSettings

ANSWERS = ("stop", "continue", "anew")  # what to do with checkpoints of other code
OTHER_CODE = "DOPSD_OTHER_CODE"  # environment variable with an answer, for DVC, flows and clusters


def answer_of(flag: str | None) -> str:
    """Return what to do with a run that other code began.

    Args:
        flag: the command line's answer; None reads DOPSD_OTHER_CODE, whose default is stop.

    Raises:
        DopsdError: if the answer is not one of ANSWERS.
    """
    answer = flag or os.environ.get(OTHER_CODE) or "stop"
    if answer not in ANSWERS:
        raise DopsdError(unknown(f"{OTHER_CODE}: {answer}", ANSWERS), code=Code.VARIABLE)
    return answer


def make_ready(run: RunSettings, answer: str) -> None:
    """Put the checkpoints that a run can continue from into its folder, and write run.json.

    Args:
        run: the run.
        answer: what to do with checkpoints of other code, one of ANSWERS.

    Raises:
        DopsdError: if other code trained the checkpoints and the answer is stop.
    """
    scratch, code = scratch_folder(run), code_of(run.key.task, run.kind)
    candidates = _candidates(run, scratch)
    same_code = [
        candidate for candidate in candidates if record_of(candidate.folder).get("code") == code
    ]
    if same_code or record_of(scratch).get("code") == code:
        if same_code and answer == "anew":
            log(
                f"train: --anew: ignored, because this code made the last updates in {scratch};"
                " move that folder away to start from update 0"
            )
        return _begin(run, scratch, _furthest(same_code, scratch))
    best = _furthest(candidates, scratch)
    if best and answer == "stop":
        raise DopsdError(_question(run, best, code), code=Code.OTHER_CODE)
    _begin(run, scratch, None if answer == "anew" else best)


def _furthest(candidates: list[Resumable], scratch: Path) -> Resumable | None:
    return max(
        candidates,
        key=lambda candidate: (candidate.update, candidate.folder == scratch),
        default=None,
    )


def _candidates(run: RunSettings, scratch: Path) -> list[Resumable]:
    """Return what the run can continue from: its own folder, and folders with more updates.

    These are folders of the run with other lengths and the same history.
    """
    settings, record = run.train, record_of(scratch)
    current = resumable(scratch, settings, is_whole=False)
    candidates = [current] if current.update else []
    for folder in sorted(scratch.parent.glob(f"{scratch.name.rpartition('-')[0]}-*")):
        other_record = record_of(folder)
        is_further = max(map(update_of, steps_of(folder)), default=0) > current.update
        if (
            folder == scratch
            or not other_record
            or not is_further
            or (current.update and other_record["history"] != record.get("history"))
        ):
            continue
        candidate = resumable(
            folder,
            settings,
            is_whole=str(run.key) not in other_record["cells"],
        )
        if candidate.update > current.update and candidate.is_logged:
            candidates.append(candidate)
        else:
            log(
                f"train: {folder} has more updates, but no checkpoint that a run of"
                f" {settings.updates} updates can start from"
            )
    return candidates


def _question(run: RunSettings, best: Resumable, code: dict[str, str]) -> str:
    old_code = record_of(best.folder).get("code", {})
    changed_files = sorted(name for name in old_code | code if old_code.get(name) != code.get(name))
    changes = changed_files[0] + (
        f" and {len(changed_files) - 1} more changed" if changed_files[1:] else " changed"
    )
    changes = changes if old_code else f"no {RECORD} records which"
    return (
        f"train: {best.folder} is at update {best.update}, trained by other code ({changes});"
        f" `dopsd train {' '.join(run.key.words)} --continue` continues with this code, --anew"
        f" starts from update 0; under DVC, a flow or a cluster set {OTHER_CODE}=continue or anew"
    )


def _set_aside(folder: Path) -> None:
    """Move a folder's contents aside, except the lock, which this process holds."""
    if not steps_of(folder):
        return
    number = 1 + len([*ASIDE.glob(f"{folder.name}.*")])
    target = ASIDE / f"{folder.name}.{number}"
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name != "lock":
            path.rename(target / path.name)
    log(f"train: starting from update 0; the old checkpoints are in {target} until `dopsd clean`")


def _begin(run: RunSettings, scratch: Path, best: Resumable | None) -> None:
    """Bring the checkpoints to continue from into the folder, then write run.json."""
    decisive, ends = settings_of(run)
    code, record = code_of(run.key.task, run.kind), record_of(best.folder if best else scratch)
    if best and best.folder != scratch:
        write_json(scratch / RECORD, record)  # first, so that the checkpoints' origin is known
        bring(best, scratch)
        log(f"train: {scratch} starts from update {best.update} of {best.folder}")
    cells = record.get("cells", []) if best and best.folder == scratch else []
    if best and best.lacking and str(run.key) not in cells:
        log(
            f"train: no checkpoints of updates {', '.join(map(str, best.lacking))}: the other run"
            " did not make them (train.checkpoint_every) or no longer has them (checkpoints.keep)"
        )
    if not best and record.get("code") != code:
        _set_aside(scratch)
        empty(scratch)
        record = {}
    history = record.get("history", [{"update": 0, "code": UNKNOWN}] if best else [])
    if not history or history[-1]["code"] != digest(code):
        history = [
            *history,
            {"update": best.update if best else 0, "code": digest(code), "version": _version()},
        ]
    cells = sorted({str(run.key), *(cells if best else record.get("cells", []))})
    new_record = {
        "settings": decisive,
        "ends": ends,
        "inputs": {path.as_posix(): sha256(path) for path in input_files(run)},
        "code": code,
        "history": history,
        "cells": cells,
    }
    if new_record != record_of(scratch):
        write_json(scratch / RECORD, new_record)


def _version() -> str:
    try:
        return version("dopsd")
    except PackageNotFoundError:
        return "from a checkout"
