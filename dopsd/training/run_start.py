"""Start a run in its folder, or continue what is there; with other code a person decides how.

A run that differs in nothing but its length, or in which checkpoints it keeps, is the same run: its
folder begins with what another length has learnt.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
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

ANSWERS = ("stop", "continue", "anew")
OTHER_CODE = "DOPSD_OTHER_CODE"  # one of them, where a command's words cannot be changed


def answer_of(flag: str | None) -> str:
    """What to do where other code began the run: as the command line says, else as the environment
    does.
    """
    answer = flag or os.environ.get(OTHER_CODE) or "stop"
    if answer not in ANSWERS:
        raise DopsdError(f"{OTHER_CODE}: {answer}: unknown; expected {', '.join(ANSWERS)}")
    return answer


def make_ready(run: RunSettings, answer: str, adopted: Path | None = None) -> None:
    """Bring into the cell's folder what can be continued; ask, by DopsdError, where other code has
    learnt it.

    adopted: a folder of an older release, which wrote no run.json, of which a person says that it
    is this run's.
    """
    own_folder, code = scratch_folder(run), code_of(run.key.task, run.kind)
    if adopted and not steps_of(own_folder):
        return _begin(run, own_folder, _adopted(run, adopted))
    if adopted:
        if not adopted.is_dir():
            raise DopsdError(f"--adopt {adopted}: no such folder")
        log(f"train: --adopt {adopted}: {own_folder} has begun already, and continues")
    candidates = _candidates(run, own_folder)
    same_code = [
        candidate for candidate in candidates if record_of(candidate.folder).get("code") == code
    ]
    if same_code or record_of(own_folder).get("code") == code:
        if same_code and answer == "anew":
            log(
                f"train: --anew: this code has learnt the last of {own_folder}, so that it"
                " continues; move that away to start at zero"
            )
        return _begin(run, own_folder, _furthest(same_code, own_folder))
    best = _furthest(candidates, own_folder)
    if best and answer == "stop":
        raise DopsdError(_question(run, best, code))
    if not best and answer != "anew":
        _ask_about_older(run, own_folder)
    _begin(run, own_folder, None if answer == "anew" else best)


def _furthest(candidates: list[Resumable], own_folder: Path) -> Resumable | None:
    return max(
        candidates,
        key=lambda candidate: (candidate.update, candidate.folder == own_folder),
        default=None,
    )


def _candidates(run: RunSettings, own_folder: Path) -> list[Resumable]:
    """What the cell's folder holds, and folders of other lengths of the run that hold more and have
    the same history.

    A cell that has learnt nothing yet is also looked for under the names that other releases gave
    to its settings.
    """
    settings, (_, ends), record = (
        run.train,
        settings_of(run),
        record_of(own_folder),
    )
    current = resumable(own_folder, ends, settings, is_whole=False)
    candidates = [current] if current.update else []
    siblings = set(own_folder.parent.glob(f"{own_folder.name.rpartition('-')[0]}-*"))
    for folder in sorted(siblings if current.update else {*siblings, *of_other_releases(run)}):
        other_record = record_of(folder)
        is_further = max(map(update_of, steps_of(folder)), default=0) > current.update
        if (
            folder == own_folder
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
                f"train: {folder} has learnt more, but kept no checkpoint that {settings.updates}"
                " updates can begin with"
            )
    return candidates


def _question(run: RunSettings, best: Resumable, code: dict[str, str]) -> str:
    record = record_of(best.folder)
    old_code, settings = record.get("code", {}), settings_of(run)[0]
    changed_files = sorted(name for name in old_code | code if old_code.get(name) != code.get(name))
    changes = changed_files[0] + (
        f" and {len(changed_files) - 1} more changed" if changed_files[1:] else " changed"
    )
    changes = changes if old_code else f"no {RECORD} says which"
    unknown = [key for key, _ in differing(record.get("settings", settings), settings)]
    changes += (
        f"; settings that one of the two does not have: {', '.join(unknown)}" if unknown else ""
    )
    return (
        f"train: {best.folder} stands at update {best.update}, learnt by other code ({changes});"
        f" `dopsd train {' '.join(run.key.words)} --continue` goes on from there with this code,"
        f" --anew starts at zero; where DVC, a flow or a cluster runs it: {OTHER_CODE}=continue or"
        " anew"
    )


def _ask_about_older(run: RunSettings, own_folder: Path) -> None:
    from dopsd.training.older import older_folders  # heavy, and seldom needed

    if record_of(own_folder) or not (older := older_folders(run)):
        return
    listing = ", ".join(f"{folder} (update {update})" for folder, update in older.items())
    raise DopsdError(
        f"train: {listing}: written by an older release, which does not say of which settings; if"
        f" it is this run, `dopsd train {' '.join(run.key.words)} --adopt {next(iter(older))}`"
        f" continues it, --anew (or {OTHER_CODE}=anew) starts at zero"
    )


def _adopted(run: RunSettings, folder: Path) -> Resumable:
    from dopsd.training.older import refuse_misfit

    refuse_misfit(run, folder)
    source = resumable(folder, {}, run.train, is_whole=False)
    if not source.update or not source.is_logged:
        raise DopsdError(
            f"--adopt {folder}: no whole checkpoint in it that these settings can continue from"
        )
    return source


def _set_aside(folder: Path) -> None:
    """Everything but the lock, which this process holds."""
    if not steps_of(folder):
        return
    number = 1 + len([*ASIDE.glob(f"{folder.name}.*")])
    target = ASIDE / f"{folder.name}.{number}"
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name != "lock":
            path.rename(target / path.name)
    log(f"train: starting at zero; what was learnt before is in {target} until `dopsd clean`")


def _begin(run: RunSettings, own_folder: Path, best: Resumable | None) -> None:
    """Write run.json, after the folder holds what it tells of."""
    decisive, ends = settings_of(run)
    code, record = code_of(run.key.task, run.kind), record_of(best.folder if best else own_folder)
    if best and best.folder != own_folder and not record:  # an older release's
        record = {"adopted": best.folder.name}
    if best and best.folder != own_folder:
        if record_of(
            best.folder
        ):  # before the checkpoints: nobody should have to ask whose they are
            write_json(own_folder / RECORD, record)
        bring(best, own_folder)
        log(f"train: {own_folder} begins with update {best.update} of {best.folder}")
        if best.lacking:
            log(
                f"train: no checkpoints {', '.join(map(str, best.lacking))}: the run kept others"
                " (train.checkpoint_every)"
            )
    if not best and record.get("code") != code:
        _set_aside(own_folder)
        empty(own_folder)
        record = {}
    history = record.get("history", [{"update": 0, "code": UNKNOWN}] if best else [])
    if not history or history[-1]["code"] != digest(code):
        history = [
            *history,
            {"update": best.update if best else 0, "code": digest(code), "version": _version()},
        ]
    cells = sorted(
        {str(run.key), *(record.get("cells", []) if not best or best.folder == own_folder else [])}
    )
    new_record = {
        "settings": decisive,
        "ends": ends,
        "inputs": inputs_of(run),
        "code": code,
        "history": history,
        "cells": cells,
    }
    new_record |= {"adopted": record["adopted"]} if "adopted" in record else {}
    if new_record != record_of(own_folder):
        write_json(own_folder / RECORD, new_record)


def _version() -> str:
    try:
        return version("dopsd")
    except PackageNotFoundError:
        return "from a checkout"
