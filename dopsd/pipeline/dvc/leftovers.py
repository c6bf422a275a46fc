"""Remove what DVC began to copy and did not finish: it was killed, or the disk was full."""

import math
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

COPY = re.compile(r"\.[\w-]{22}\.tmp", re.ASCII)  # DVC's name for a copy until it is finished
CACHE = Path(".dvc/cache")
STILL = (
    60.0  # seconds without a write, after which no other project's DVC fills a copy in the cache
)


def remove_copies() -> None:
    """Remove copies that DVC left beside and in its outputs and in its cache.

    Nothing happens while another DVC works here. Other projects may share the cache: there, a copy
    must also be some time old.
    """
    found = [*_copies(Path(), math.inf), *_copies(CACHE, time.time() - STILL)]
    if not found:
        return
    from dvc.exceptions import DvcException
    from dvc.repo import Repo  # slow to import

    with suppress(DvcException, OSError, sqlite3.Error), Repo() as repo, repo.lock:
        outs = [Path(out.fs_path) for out in repo.index.outs]
        for path in found:
            above = path.absolute().parents
            if CACHE in path.parents or any(o.parent == above[0] or o in above for o in outs):
                path.unlink(missing_ok=True)


def _copies(top: Path, before: float) -> Iterator[Path]:
    """Yield files with names of DVC's copies, which were written before a time."""
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names if COPY.fullmatch(name)):
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime <= before:
                    yield path
