"""Append-only files of JSON lines, each line a value with its digest.

A line that a kill cut short, or that changed on disk, is ignored when the file is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def digest(value: object) -> str:
    """Return 16 hex digits of the value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def with_digest(value: object) -> dict[str, Any]:
    """Wrap a JSON value with its digest, as one line of a file holds it."""
    return {"digest": digest(value), "value": value}


def verified(raw: bytes) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value that `with_digest` wrapped.

    Raises:
        ValueError: if the bytes are not JSON, or do not match their digest.
    """
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
