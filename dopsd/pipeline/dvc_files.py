"""Files of DVC that a kill or a full disk cut off, and with which DVC refuses to run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dopsd.core.files import ASIDE
from dopsd.core.progress import log

RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of processes that read and write each path
LOCKFILE = Path("dvc.lock")


def forget_the_dead() -> None:
    """Remove DVC's list of processes, unless one of them is a DVC that runs here.

    On another machine the id of a killed DVC may belong to a process that DVC would wait for. DVC
    also refuses to run with a list that was cut off.
    """
    from dopsd.pipeline.writer_lock import is_running

    if RWLOCK.is_file():
        numbers = re.findall(r'"pid": (\d+)', RWLOCK.read_text(encoding="utf-8"))
        if not any(is_running(int(number), "dvc") for number in numbers):
            RWLOCK.unlink()


def set_aside_damaged(name: str) -> bool:
    """Move a dvc.lock that was cut off to work/aside, and clean DVC's run cache.

    DVC then finds the results of each stage in its run cache. There it fails at a folder without
    entries, which a kill leaves before the first entry is written.

    Args:
        name: Command that messages name.

    Returns:
        Whether there was any damage, so that another run can succeed.
    """
    from dvc.repo import Repo

    is_any = LOCKFILE.is_file() and not _is_lockfile(LOCKFILE.read_bytes())
    if is_any:
        ASIDE.mkdir(parents=True, exist_ok=True)
        shutil.move(LOCKFILE, ASIDE / LOCKFILE.name)
        log(f"{name}: {LOCKFILE} was cut off; moved to {ASIDE}, running again with DVC's run cache")
    for folder in Path(Repo().stage_cache.cache_dir).glob("??/*"):
        if not any(folder.iterdir()):
            folder.rmdir()
            is_any = True
    return is_any


def _is_lockfile(content: bytes) -> bool:
    """Tell whether DVC can read a dvc.lock, or the marks of a git merge are in it."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(content))
    except (YAMLError, Invalid, ValueError):
        return b"<<<<<<<" in content
    return True
