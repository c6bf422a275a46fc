"""Files of DVC that a kill or a full disk cut off: restore dvc.lock, set aside damaged results."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from dopsd.core.files import ASIDE, WORK
from dopsd.core.progress import log

RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of processes that read and write each path
LOCKFILE, KEPT, DAMAGED = Path("dvc.lock"), WORK / "dvc.lock", WORK / "dvc.lock.damaged"


def forget_the_dead() -> None:
    """Remove DVC's list of processes, unless one of them is a DVC that runs here.

    On another machine the id of a killed DVC may belong to a process that DVC would wait for. DVC
    also refuses to run with a list that a kill or a full disk cut off.
    """
    from dopsd.pipeline.writer_lock import is_running

    if RWLOCK.is_file():
        numbers = re.findall(r'"pid": (\d+)', RWLOCK.read_text(encoding="utf-8"))
        if not any(is_running(int(number), "dvc") for number in numbers):
            RWLOCK.unlink()


def keep_lockfile(name: str) -> None:
    """Back up dvc.lock, or restore it from the backup where a full disk or a kill cut it off.

    A dvc.lock with the marks of a git merge stays as it is: the user must resolve it.

    Args:
        name: Command that messages name.
    """
    if not LOCKFILE.is_file():
        return
    content, backup = LOCKFILE.read_bytes(), KEPT.read_bytes() if KEPT.is_file() else None
    if content == backup:
        return
    if _is_lockfile(content):
        _replace(KEPT, content)
    elif backup is not None and b"<<<<<<<" not in content:
        _replace(DAMAGED, content)
        _replace(LOCKFILE, backup)
        log(
            f"{name}: {LOCKFILE} was cut off or damaged; restored as before the last run"
            f" (damaged copy: {DAMAGED})"
        )


def set_aside_damaged_results(name: str) -> bool:
    """Move entries of DVC's run cache whose content does not match their names to work/aside.

    DVC fails at an entry that was cut off but is still valid YAML. DVC also fails at a folder
    without entries, which is removed.

    Args:
        name: Command that messages name.

    Returns:
        Whether there were any, so that another run can succeed.
    """
    from dvc.repo import Repo

    is_any = False
    for folder in Path(os.path.relpath(Repo().stage_cache.cache_dir)).glob("??/*"):
        for path in folder.glob("*"):
            if re.fullmatch("[0-9a-f]{64}", path.name) and _digest(path) != path.name:
                aside = ASIDE / "run-cache"
                aside.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    shutil.move(path, aside / path.name)
                log(f"{name}: {path}: damaged; moved to {aside}, running again")
                is_any = True
        with suppress(OSError):  # entries are left
            folder.rmdir()
            is_any = True
    return is_any


def _digest(path: Path) -> str:
    """Return the name that DVC gives an entry of its run cache; empty if the file is no YAML."""
    from dvc.utils import dict_sha256
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        digest: str = dict_sha256(
            YAML(typ="safe").load(path.read_bytes()), exclude=["size", "nfiles"]
        )
        return digest
    except (YAMLError, ValueError, TypeError):
        return ""


def _is_lockfile(content: bytes) -> bool:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(content))
    except (YAMLError, Invalid, ValueError):
        return False
    return True


def _replace(path: Path, content: bytes) -> None:
    tmp = path.with_name(f"{path.name}.tmp")
    tmp.write_bytes(content)
    tmp.rename(path)
