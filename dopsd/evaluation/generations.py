"""Read files of generations as evaluation scripts write them.

A .jsonl file has one object {question, ground_truth, generation} on each line. A .json file is one
object {"generations": [{question, ground_truth, generations}, ...]}, as of d1 and d-OPSD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.tasks.common.json_files import DECODER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dopsd.core.types import Problem
    from dopsd.tasks.common.task import Task


EXPECTED = "an object with question, ground_truth and generation"


@dataclass(frozen=True)
class Generation:
    """One text that a model generated for a problem."""

    file: str
    row: int  # line or list position in the file, from 1
    problem: Problem
    text: str


def read_generations(path: Path, task: Task) -> list[Generation]:
    """Read all generations of a file.

    Args:
        path: a .jsonl or .json file.
        task: the task that turns questions into problems.

    Raises:
        DopsdError: with file and row, if the file is unreadable, empty or malformed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DopsdError(
            f"{path}: {error.strerror}; expected a file of generations, .jsonl or .json",
            code=Code.GENERATIONS_FILE,
        ) from error
    except UnicodeDecodeError as error:
        raise DopsdError(f"{path}: not UTF-8 text ({error})", code=Code.GENERATIONS_FILE) from error
    rows = _listed(text, path) if path.suffix == ".json" else _lines(text, path)
    generations = [_generation(row, path, number, task) for number, row in rows]
    if not generations:
        raise DopsdError(
            f"{path}: no generations; expected at least one row", code=Code.GENERATIONS_FILE
        )
    return generations


def _lines(text: str, path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _parsed(line, f"{path}:{number}", "one JSON object on each line")


def _listed(text: str, path: Path) -> Iterator[tuple[int, object]]:
    document = _parsed(
        text, str(path), 'a JSON object with a list "generations" (JSON lines end in .jsonl)'
    )
    rows = document.get("generations") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise DopsdError(
            f'{path}: expected a JSON object with a list "generations"', code=Code.GENERATIONS_FILE
        )
    yield from enumerate(rows, 1)


def _parsed(text: str, location: str, expected: str) -> object:
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{location}: expected {expected}: {error}", code=Code.GENERATIONS_FILE
        ) from error


def _missing(row: dict[str, object]) -> list[str]:
    """Return the keys that a row lacks; the text has one of two names."""
    missing = [key for key in ("question", "ground_truth") if key not in row]
    return missing + ([] if row.keys() & {"generation", "generations"} else ["generation"])


def _generation(row: object, path: Path, number: int, task: Task) -> Generation:
    location = f"{path}:{number}"
    if not isinstance(row, dict):
        raise DopsdError(
            f"{location}: expected {EXPECTED}, found {type(row).__name__}",
            code=Code.GENERATIONS_ROW,
        )
    if missing := _missing(row):
        raise DopsdError(
            f"{location}: no key {' and no key '.join(missing)}; expected {EXPECTED}, found the"
            f" keys {', '.join(row) or '(none)'}",
            code=Code.GENERATIONS_ROW,
        )
    text = row.get("generation", row.get("generations"))
    if isinstance(text, list) and len(text) == 1:
        text = text[0]
    if not isinstance(text, str) or not isinstance(row["question"], str):
        raise DopsdError(
            f"{location}: expected question and generation as strings, one generation in each row",
            code=Code.GENERATIONS_ROW,
        )
    try:
        problem = task.of_generation(row["question"], row["ground_truth"])
    except DopsdError as error:
        raise DopsdError(
            f"{location}: {error}; is this a file of {task.name}?", code=Code.GENERATIONS_ROW
        ) from error
    return Generation(str(path), number, problem, text)
