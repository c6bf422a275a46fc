"""Files of JSON lines that are added to bit by bit: a line cut short by a kill is left out and spoils no other."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[Any]:
    """Every whole line's value, in order; none where there is no file."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return found


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """One line a value, after whatever a kill may have left without an end; others may append at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        is_torn = path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        out.write(("\n" if is_torn else "") + "".join(json.dumps(value) + "\n" for value in values))
