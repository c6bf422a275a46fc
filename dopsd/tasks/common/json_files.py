"""Read .jsonl and .json files of rows; every number stays as its file writes it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from dopsd.core.errors import Code

ROW = re.compile(r"[^\s,]")  # where the next row of an array begins
Cells = dict[str, Any]
Numbered = tuple[int, Cells]  # a row with its number, or that of its line, from 1


@dataclass(frozen=True, repr=False)
class Figure:
    """A number with a fraction or an exponent, as its file writes it: 1.10, 1e-05."""

    text: str

    def __repr__(self) -> str:
        """Return the number as the file has it."""
        return self.text


def repeated(names: Iterable[str]) -> str | None:
    """Return the name that occurs most often, quoted; None if none occurs twice."""
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    return f"{name[:40]!r}" if count > 1 else None


def unambiguous(pairs: list[tuple[str, Any]]) -> Cells:
    """Return a JSON object."""
    if name := repeated(name for name, _ in pairs):
        raise ValueError(f"key {name} occurs twice; keep one of them")
    return dict(pairs)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        digits = text.removeprefix("-")
        raise ValueError(
            f"an integer of {len(digits)} digits, {digits[:10]}...; write it as text"
        ) from None


DECODER = json.JSONDecoder(parse_float=Figure, parse_int=_integer, object_pairs_hook=unambiguous)


def json_of(value: object) -> str:
    """Return a value as JSON, numbers as their file has them.

    Raises:
        TypeError: if it holds a value of another type, such as a date.
        ValueError: if it holds a number that is not finite.
        RecursionError: if it is nested too deeply.
    """
    if isinstance(value, Figure):
        return value.text
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(json_of, value))}]"
    if isinstance(value, dict):
        pairs = (f"{json_of(str(name))}: {json_of(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def json_lines(path: Path) -> Iterator[Numbered]:
    """Yield the rows of a file with one JSON object on each line."""
    with path.open(encoding="utf-8-sig") as lines:
        rows = (
            (number, _object(line, f"{path}:{number}"))
            for number, line in enumerate(lines, 1)
            if line.strip()
        )
        yield from _no_table(rows, path)


def json_file(path: Path) -> Iterator[Numbered]:
    """Yield the rows of one array, or of a file with one object per line."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        yield from _array(text, path)
        return
    try:
        json.loads(text, parse_int=str)  # of any length: a row is named later
    except (ValueError, RecursionError):
        yield from json_lines(path)
    else:
        yield from _no_table(iter([(1, _object(text, str(path)))]), path)


def _array(text: str, path: Path) -> Iterator[Numbered]:
    try:
        json.loads(text, parse_int=str)  # of any length: a row is named later
    except (ValueError, RecursionError) as error:
        raise Code.SOURCE_FORMAT.error(f"{path}: not a JSON array: {error}") from error
    number, end = 0, text.index("[") + 1
    while (found := ROW.search(text, end)) and found[0] != "]":
        number += 1
        value, end = _decoded(text, found.start(), f"{path}: row {number}")
        yield number, value


def _object(text: str, location: str) -> Cells:
    value, end = _decoded(text.strip(), 0, location)
    if rest := text.strip()[end:].strip():
        raise Code.SOURCE_FORMAT.error(
            f"{location}: expected one JSON object per line, found {rest[:40]!r} after it"
        )
    return value


def _decoded(text: str, start: int, location: str) -> tuple[Cells, int]:
    """Return the object that begins here, and the position after it."""
    try:
        value, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise Code.SOURCE_FORMAT.error(
            f"{location}: expected one JSON object per line: {error}"
        ) from error
    if not isinstance(value, dict):
        raise Code.SOURCE_FORMAT.error(
            f"{location}: expected one JSON object per line, found {text[start:].strip()[:40]!r}"
        )
    return value, end


def _no_table(rows: Iterator[Numbered], path: Path) -> Iterator[Numbered]:
    """Yield the rows; refuse a file of one object that holds all columns, or a list of rows."""
    first = list(islice(rows, 2))
    cells = first[0][1] if len(first) == 1 else {}
    is_chat = cells.keys() == {"messages"}
    if cells and not is_chat and all(isinstance(cell, dict | list) for cell in cells.values()):
        raise Code.SOURCE_FORMAT.error(
            f"{path}: one object of {', '.join(cells):.80}, not one for each row; write an array"
            " of rows, or one row a line (pandas: orient='records')"
        )
    yield from chain(first, rows)
