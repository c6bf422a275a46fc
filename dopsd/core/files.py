"""Atomic writes, and JSON files read with a clear message when they are damaged."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dopsd.core.errors import Code, DopsdError

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


def write_atomically(path: Path, text: str, is_shared: bool = False) -> None:
    """Write text to a temporary name, then rename, so that a reader never sees half a file.

    Args:
        path: the file; missing folders are made.
        is_shared: whether other processes may write the file at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # one name, where possible: a killed process leaves at most one file
    tmp = own_name(path) if is_shared else path.with_name(f".{path.name}.tmp")
    try:
        tmp.write_text(text, encoding="utf-8")
        tmp.rename(path)
    except OSError as error:
        if error.errno and not error.filename:  # a full disk does not say where
            error.filename = str(path)
        with contextlib.suppress(OSError):
            tmp.unlink()
        raise


def write_json(path: Path, value: object, is_shared: bool = False) -> None:
    """Write a JSON value as `write_atomically` does."""
    write_atomically(path, json.dumps(value, indent=1, sort_keys=True) + "\n", is_shared)


def rewrite(path: Path, content: bytes) -> None:
    """Replace the content of a user's file; links to it, its mode and its owner stay.

    It is replaced whole or not at all, but for a file with hard links or a mount of its own, and a
    device or pipe, which receives the content.
    """
    status = path.stat() if path.exists() else None
    if status and (status.st_nlink > 1 or not stat.S_ISREG(status.st_mode)):
        path.write_bytes(content)
        return
    if status and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    target = path.resolve()
    tmp = own_name(target)
    try:
        tmp.touch(0o600 if status else 0o666)
        tmp.write_bytes(content)
        if status:
            with contextlib.suppress(PermissionError):
                os.chown(tmp, status.st_uid, status.st_gid)
            tmp.chmod(stat.S_IMODE(status.st_mode))
        tmp.rename(target)
    except OSError as error:
        if error.errno != errno.EBUSY:  # a container mounts the file alone
            raise
        target.write_bytes(content)
    finally:
        tmp.unlink(missing_ok=True)


def own_name(path: Path) -> Path:
    """Return a temporary name for a file that no other process uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """Read the result of an earlier stage."""
    if not path.is_file():
        raise Code.STAGE_MISSING.error(
            f"{path}: no such file; run `{made_by}` for this task, method and seed first"
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
        location: where the text comes from, for messages: a file, or a file and a row.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Code.RESULT_DAMAGED.error(
            f"{location}: not valid JSON ({error}); restore the file, or delete it and run the"
            " command that writes it"
        ) from error
    if not isinstance(value, dict):
        raise Code.RESULT_DAMAGED.error(
            f"{location}: expected a JSON object, found {content[:40]!r}; restore the file, or"
            " create it again"
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


def digest(value: object) -> str:
    """Return 16 hex digits of the value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def with_digest(value: object) -> dict[str, Any]:
    """Wrap a JSON value with its digest, as one line of a file holds it."""
    return {"digest": digest(value), "value": value}


def verified(raw: bytes) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value that `with_digest` wrapped."""
    record = json.loads(raw)
    if (
        not isinstance(record, dict)
        or {*record} != {"digest", "value"}
        or record["digest"] != digest(record["value"])
    ):
        raise ValueError("does not match its digest")
    return record["value"]


def read_lines(path: Path) -> list[Any]:
    """Return the values of all intact lines, in order; none if there is no file."""
    values = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ValueError, RecursionError):
            values.append(verified(line))
    return values


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """Append one line for each value, under a lock; other processes may append at the same time.

    A last line that a kill left without a line break is closed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        is_torn = path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        out.write(
            ("\n" if is_torn else "")
            + "".join(json.dumps(with_digest(value)) + "\n" for value in values)
        )
