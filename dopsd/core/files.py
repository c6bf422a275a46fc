"""Atomic writes, and JSON files read with a clear message when they are damaged."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path("work")
# replaced results: of a restarted run, of DVC's run cache; `dopsd clean` removes them
ASIDE = WORK / "aside"


def link(source: Path | str, target: Path | str) -> None:
    """Hard-link a file that is never written again, or copy it if the disk has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def link_copy(path: Path, copy: Path) -> None:
    """Replace a copy of a file by a hard link to it, if both are on one disk that has links."""
    tmp = copy.with_name(f".{copy.name}.link")
    with contextlib.suppress(OSError):
        tmp.unlink(missing_ok=True)
        tmp.hardlink_to(path)
        tmp.rename(copy)


def write_json(path: Path, value: object, is_shared: bool = False) -> None:
    """Write JSON to a temporary name, then rename, so that a reader never sees half a file.

    Args:
        path: the file.
        value: a JSON value.
        is_shared: whether other processes may write the file at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # one name, where possible: a killed process leaves at most one file
    tmp = own_name(path) if is_shared else path.with_name(f".{path.name}.tmp")
    tmp.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    tmp.rename(path)


def rewrite(path: Path, content: bytes) -> None:
    """Replace the content of a user's file; links to it, its mode and its owner stay.

    It is replaced whole or not at all, but for a file with hard links or a mount of its own.
    """
    target = path.resolve()
    status = target.stat() if target.exists() else None
    if status and status.st_nlink > 1:
        target.write_bytes(content)
        return
    tmp = target.with_name(f".{target.name}.tmp")
    tmp.unlink(missing_ok=True)
    tmp.touch(0o600 if status else 0o666)
    tmp.write_bytes(content)
    if status:
        with contextlib.suppress(PermissionError):
            os.chown(tmp, status.st_uid, status.st_gid)
        tmp.chmod(stat.S_IMODE(status.st_mode))
    try:
        tmp.rename(target)
    except OSError as error:
        if error.errno != errno.EBUSY:  # a container mounts the file alone
            raise
        target.write_bytes(content)
        tmp.unlink()


def own_name(path: Path) -> Path:
    """Return a temporary name for a file that no other process uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """Read the result of an earlier stage.

    Args:
        path: the JSON file.
        made_by: the command that writes the file, for the message when it is missing.

    Raises:
        DopsdError: if the file is missing or is not a JSON object.
    """
    if not path.is_file():
        raise DopsdError(
            f"{path}: no such file; run `{made_by}` for this task, method and seed first",
            code=Code.STAGE_MISSING,
        )
    return parse_object(path.read_bytes(), path)


def object_in(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty one if it is missing or damaged."""
    with contextlib.suppress(OSError, DopsdError):
        return parse_object(path.read_bytes(), path)
    return {}


def parse_object(content: bytes | str, location: object) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        content: the JSON text.
        location: where the text comes from, for messages: a file, or a file and a row.

    Raises:
        DopsdError: if the text is not JSON, or not an object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{location}: not valid JSON ({error}); restore the file, or delete it and run the"
            " command that writes it",
            code=Code.RESULT_DAMAGED,
        ) from error
    if not isinstance(value, dict):
        raise DopsdError(
            f"{location}: expected a JSON object, found {content[:40]!r}; restore the file, or"
            " create it again",
            code=Code.RESULT_DAMAGED,
        )
    return value


@contextlib.contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` once the context ends without an error."""
    tmp = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    yield tmp
    shutil.rmtree(path, ignore_errors=True)
    tmp.rename(path)
