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
from dopsd.core.progress import log
from dopsd.training.checkpoint import update_of
from dopsd.training.other_releases import differing, inputs_of, of_other_releases
from dopsd.training.resuming import RECORD, Resumable, bring, empty, record_of, resumable, steps_of
from dopsd.training.run_identity import UNKNOWN, code_of, digest
from dopsd.training.run_settings import scratch_folder, settings_of

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


def make_ready(run: RunSettings, answer: str, adopted: Path | None = None) -> None:
    """Put the checkpoints that a run can continue from into its folder, and write run.json.

    Args:
        run: the run.
        answer: what to do with checkpoints of other code, one of ANSWERS.
        adopted: a folder of an older release without run.json to continue from.

    Raises:
        DopsdError: if other code trained the checkpoints and the answer is stop, or if `adopted`
            does not fit the run.
    """
    scratch, code = scratch_folder(run), code_of(run.key.task, run.kind)
    if adopted and not steps_of(scratch):
        return _begin(run, scratch, _adopted(run, adopted))
    if adopted:
        if not adopted.is_dir():
            raise DopsdError(f"--adopt {adopted}: no such folder", code=Code.ADOPT)
        log(f"train: --adopt {adopted}: ignored; {scratch} has checkpoints and continues")
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
    if not best and answer != "anew":
        _ask_about_older(run, scratch)
    _begin(run, scratch, None if answer == "anew" else best)


def _furthest(candidates: list[Resumable], scratch: Path) -> Resumable | None:
    return max(
        candidates,
        key=lambda candidate: (candidate.update, candidate.folder == scratch),
        default=None,
    )


def _candidates(run: RunSettings, scratch: Path) -> list[Resumable]:
    """Return what the run can continue from: its own folder, and folders with more updates.

    These are folders of the run with other lengths and the same history. For a run without
    checkpoints, folders that other releases named differently count too.
    """
    settings, (_, ends), record = (
        run.train,
        settings_of(run),
        record_of(scratch),
    )
    current = resumable(scratch, ends, settings, is_whole=False)
    candidates = [current] if current.update else []
    siblings = set(scratch.parent.glob(f"{scratch.name.rpartition('-')[0]}-*"))
    for folder in sorted(siblings if current.update else {*siblings, *of_other_releases(run)}):
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
            other_record["ends"],
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
    record = record_of(best.folder)
    old_code, settings = record.get("code", {}), settings_of(run)[0]
    changed_files = sorted(name for name in old_code | code if old_code.get(name) != code.get(name))
    changes = changed_files[0] + (
        f" and {len(changed_files) - 1} more changed" if changed_files[1:] else " changed"
    )
    changes = changes if old_code else f"no {RECORD} records which"
    unknown = [key for key, _ in differing(record.get("settings", settings), settings)]
    changes += f"; settings that only one of the two has: {', '.join(unknown)}" if unknown else ""
    return (
        f"train: {best.folder} is at update {best.update}, trained by other code ({changes});"
        f" `dopsd train {' '.join(run.key.words)} --continue` continues with this code, --anew"
        f" starts from update 0; under DVC, a flow or a cluster set {OTHER_CODE}=continue or anew"
    )


def _ask_about_older(run: RunSettings, scratch: Path) -> None:
    from dopsd.training.older import older_folders  # slow to import and rarely needed

    if record_of(scratch) or not (older := older_folders(run)):
        return
    listing = ", ".join(f"{folder} (update {update})" for folder, update in older.items())
    raise DopsdError(
        f"train: {listing}: from an older release, which did not record the settings; `dopsd train"
        f" {' '.join(run.key.words)} --adopt {next(iter(older))}` continues if this is the same"
        f" run, --anew (or {OTHER_CODE}=anew) starts from update 0",
        code=Code.OLDER_RELEASE,
    )


def _adopted(run: RunSettings, folder: Path) -> Resumable:
    from dopsd.training.older import refuse_misfit

    refuse_misfit(run, folder)
    source = resumable(folder, {}, run.train, is_whole=False)
    if not source.update or not source.is_logged:
        raise DopsdError(
            f"--adopt {folder}: no intact checkpoint that these settings can continue from",
            code=Code.ADOPT,
        )
    return source


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
    if best and best.folder != scratch and not record:  # a folder of an older release
        record = {"adopted": best.folder.name}
    if best and best.folder != scratch:
        if record_of(best.folder):  # before the checkpoints, so that their origin is always known
            write_json(scratch / RECORD, record)
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
        "inputs": inputs_of(run),
        "code": code,
        "history": history,
        "cells": cells,
    }
    new_record |= {"adopted": record["adopted"]} if "adopted" in record else {}
    if new_record != record_of(scratch):
        write_json(scratch / RECORD, new_record)


def _version() -> str:
    try:
        return version("dopsd")
    except PackageNotFoundError:
        return "from a checkout"
