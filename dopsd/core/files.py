"""Files that are never half-written, and JSON read with a clear word for what is wrong."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path("work")
ASIDE = (
    WORK / "aside"
)  # what was replaced: of a run that began anew, of DVC's run cache; `dopsd clean` removes it


def write_json(path: Path, value: object) -> None:
    """Write to a temporary name, then rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    tmp.rename(path)


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """A result of an earlier stage; where it is missing, the command that makes it is named."""
    if not path.is_file():
        raise DopsdError(
            f"{path}: no such file; run `{made_by}` for this task, method and seed first"
        )
    return parse_object(path.read_bytes(), path)


def parse_object(content: bytes | str, location: object) -> dict[str, Any]:
    """A JSON object; what is none is refused with its place: a file, or a file and a row."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{location}: not valid JSON ({error}); restore it, or remove it and run what makes it"
        ) from error
    if not isinstance(value, dict):
        raise DopsdError(
            f"{location}: expected a JSON object, found {content[:40]!r}; restore it, or make it"
            " again"
        )
    return value


@contextlib.contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """A folder to write in that takes the place of `path` when all of it is written."""
    tmp = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    yield tmp
    shutil.rmtree(path, ignore_errors=True)
    tmp.rename(path)
