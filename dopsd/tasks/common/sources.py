"""Read the rows of a `Source`: a .jsonl, .json, .csv or .parquet file, or a hub dataset.

Every row carries its location (`file:12` or `openai/gsm8k[train]:12`) for error messages.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError, is_unicode
from dopsd.core.extras import require
from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dopsd.tasks.common.config import Source

SEPARATORS = ",;\t"  # of columns in a .csv file; spreadsheets choose by language


@dataclass(frozen=True)
class Row:
    """One row of a dataset, by column, with its location.

    Attributes:
        values: cells by column.
        file: the file, or dataset and split.
        number: number of the row, or of its line, from 1.
    """

    values: dict[str, Any]
    file: str
    number: int

    @property
    def place(self) -> str:
        """Location of the row, as `file:number`."""
        return f"{self.file}:{self.number}"


def text_of(row: Row, *columns: str) -> str:
    """Return the text in the first of these columns that the row has.

    Raises:
        DopsdError: if there is no such column, or no text in it.
    """
    column = next((name for name in columns if row.values.get(name) is not None), None)
    text = None if column is None else row.values[column]
    if not isinstance(text, str) or not text.strip():
        present = ", ".join(sorted(map(str, row.values))) or "none"
        detail = f"found {text!r:.40}" if column is not None else f"columns found: {present}"
        raise DopsdError(
            f"{row.place}: expected a text in column {' or '.join(columns)}; {detail}",
            code=Code.SOURCE_ROW,
        )
    return encodable(row, column, text)


def encodable(row: Row, column: str | None, text: str) -> str:
    """Return a cell's text, unless it holds a lone surrogate, which UTF-8 cannot encode."""
    if not is_unicode(text):
        raise DopsdError(
            f"{row.place}: an unpaired surrogate in column {column}, which no tokenizer takes",
            code=Code.SOURCE_ROW,
        )
    return text


def read_rows(source: Source, key: str) -> Iterator[Row]:
    """Return the rows of a source.

    Args:
        source: file or hub dataset.
        key: key of params.yaml that names the source, such as data.gsm8k.train.path.

    Raises:
        DopsdError: if the source cannot be read; with exit code 75 if the hub may answer later.
    """
    path = Path(source.path)
    is_file = path.suffix in READERS or path.exists()
    return read_file(path, key) if is_file else _hub_rows(source, key)


def read_file(path: Path, key: str) -> Iterator[Row]:
    """Return the rows of a file, by its suffix.

    Args:
        path: the file.
        key: key of params.yaml that names the file.

    Raises:
        DopsdError: if the file is missing, of another type, or damaged.
    """
    if not path.is_file():
        raise DopsdError(
            f"{key}: {path}: no such file; add the file, or name another file or a hub dataset",
            code=Code.SOURCE_MISSING,
        )
    if path.suffix not in READERS:
        raise DopsdError(
            f"{key}: {path}: expected a file that ends in {', '.join(READERS)}",
            code=Code.SOURCE_FORMAT,
        )
    return _with_read_errors(READERS[path.suffix](path), path)


def _with_read_errors(rows: Iterator[Row], path: Path) -> Iterator[Row]:
    """Yield the rows; turn a reader's errors into one line."""
    try:
        yield from rows
    except UnicodeDecodeError as error:
        raise DopsdError(
            f"{path}: not UTF-8 text ({error}); save the file as UTF-8", code=Code.SOURCE_FORMAT
        ) from error
    except csv.Error as error:
        raise DopsdError(
            f"{path}: not a valid csv file ({error})", code=Code.SOURCE_FORMAT
        ) from error


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Row(_object(line, f"{path}:{number}"), str(path), number)


def _json(path: Path) -> Iterator[Row]:
    """Yield the rows of one array, or of a file with one object per line."""
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        yield from _jsonl(path)
        return
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DopsdError(f"{path}: not a JSON array: {error}", code=Code.SOURCE_FORMAT) from error
    for number, value in enumerate(values, 1):
        yield Row(_object(json.dumps(value), f"{path}: row {number}"), str(path), number)


def _object(line: str, location: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{location}: expected one JSON object per line: {error}", code=Code.SOURCE_FORMAT
        ) from error
    if not isinstance(value, dict):
        raise DopsdError(
            f"{location}: expected one JSON object per line, found {line.strip()[:40]!r}",
            code=Code.SOURCE_FORMAT,
        )
    return value


def _csv(path: Path) -> Iterator[Row]:
    """Yield the rows as text, so that leading zeros stay."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        lines = csv.reader(chain([first], stream), delimiter=_separator(first))
        header = next(lines, None)
        if not header:
            raise DopsdError(
                f"{path}:1: expected a header that names the columns", code=Code.SOURCE_FORMAT
            )
        for cells in lines:
            location = f"{path}:{lines.line_num}"
            if cells and len(cells) != len(header):
                raise DopsdError(
                    f"{location}: expected {len(header)} columns as in the header, found"
                    f" {len(cells)}",
                    code=Code.SOURCE_ROW,
                )
            if cells:
                yield Row(dict(zip(header, cells, strict=True)), str(path), lines.line_num)


def _separator(header: str) -> str:
    """Return what separates the columns: the most frequent mark of the header outside quotes."""
    return max(SEPARATORS, key=re.sub('"[^"]*"', "", header).count)


def _parquet(path: Path) -> Iterator[Row]:
    require(str(path), "pyarrow")
    from pyarrow import ArrowException, parquet

    try:
        batches = parquet.ParquetFile(path).iter_batches()
        rows = (values for batch in batches for values in batch.to_pylist())
        yield from (Row(values, str(path), number) for number, values in enumerate(rows, 1))
    except (ArrowException, OSError) as error:
        raise DopsdError(
            f"{path}: not a readable parquet file ({_first_line(error)})", code=Code.SOURCE_FORMAT
        ) from error


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _hub_rows(source: Source, key: str) -> Iterator[Row]:
    require(key, "datasets")
    dataset = f"{source.path}{f' ({source.name})' if source.name else ''}, split {source.split}"
    log(f"{key}: reading {dataset} from the Hugging Face hub")
    try:
        from datasets import load_dataset

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # hide every retry
        rows = load_dataset(source.path, source.name, split=source.split, revision=source.revision)
    except Exception as error:  # the hub client raises errors of many libraries
        offline = (
            "; HF_HUB_OFFLINE is set"
            if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
            else ""
        )
        raise DopsdError(
            f"{key}: could not read {dataset} from the Hugging Face hub"
            f" ({_first_line(error)}{offline}); check the name and the network, or name a local"
            f" file ({', '.join(READERS)})",
            2 if offline else TEMPORARY,
            code=Code.HUB,
        ) from error
    location = f"{source.path}[{source.split}]"
    return (Row(dict(values), location, number) for number, values in enumerate(rows, 1))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
