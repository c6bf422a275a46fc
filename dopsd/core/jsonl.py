"""Files of JSON lines that are added to bit by bit: a line that a kill cut short, or that changed
on the disk, is left out.

Every line holds a value and its digest.
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
    """Of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def with_digest(value: object) -> dict[str, Any]:
    return {"digest": digest(value), "value": value}


def verified(raw: bytes) -> Any:  # noqa: ANN401  # any JSON value
    """The value that `with_digest` wrapped; ValueError where these are not its bytes any more."""
    record = json.loads(raw)
    if (
        not isinstance(record, dict)
        or {*record} != {"digest", "value"}
        or record["digest"] != digest(record["value"])
    ):
        raise ValueError("does not match its digest")
    return record["value"]


def read_lines(path: Path) -> list[Any]:
    """Every whole line's value, in order; none where there is no file."""
    values = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ValueError, RecursionError):
            values.append(verified(line))
    return values


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """One line a value, after whatever a kill may have left without an end; others may append at
    the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        is_torn = path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        out.write(
            ("\n" if is_torn else "")
            + "".join(json.dumps(with_digest(value)) + "\n" for value in values)
        )
