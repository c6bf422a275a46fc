"""Read the rows of a `Source`: a .jsonl, .json, .csv or .parquet file, or a hub dataset.

Every row carries its location (`file:12` or `openai/gsm8k[train]:12`) for error messages.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError, is_unicode
from dopsd.core.extras import require
from dopsd.core.progress import log
from dopsd.tasks.common.json_files import json_file, json_lines
from dopsd.tasks.common.table_files import arrow_rows, csv_file, parquet_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dopsd.tasks.common.config import Source
    from dopsd.tasks.common.json_files import Numbered


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
        found = columns_found(row, columns)
        detail = f"found {text!r:.40}" if column is not None else f"columns found: {found}"
        raise DopsdError(
            f"{row.place}: expected a text in column {' or '.join(columns)}; {detail}",
            code=Code.SOURCE_ROW,
        )
    return encodable(row, column, text)


def columns_found(row: Row, wanted: Iterable[str]) -> str:
    """Return the row's columns for a message, and which of them is almost a wanted one."""
    names = sorted(map(str, row.values))
    for name in names:
        if name.strip() in wanted:
            return f"{', '.join(names)}: {name!r} begins or ends with white space; rename it"
        if name.strip().casefold() in (column.casefold() for column in wanted):
            return f"{', '.join(names)}: {name!r} has other capital letters; rename it"
    return ", ".join(names) or "none"


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
    if path.is_dir():
        raise DopsdError(
            f"{key}: {path}: is a folder; name one file, and merge parts into one",
            code=Code.SOURCE_FORMAT,
        )
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
    return _with_read_errors(path)


def _with_read_errors(path: Path) -> Iterator[Row]:
    """Yield the rows; turn a reader's error into one line."""
    try:
        for number, cells in READERS[path.suffix](path):
            yield Row(cells, str(path), number)
    except UnicodeDecodeError as error:
        raise DopsdError(
            f"{path}: not UTF-8 text ({error}); save the file as UTF-8", code=Code.SOURCE_FORMAT
        ) from error


READERS: dict[str, Callable[[Path], Iterator[Numbered]]] = {
    ".jsonl": json_lines,
    ".json": json_file,
    ".csv": csv_file,
    ".parquet": parquet_file,
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
    tables = rows.with_format("arrow").iter(batch_size=1000)
    return (Row(cells, location, n) for n, cells in enumerate(arrow_rows(tables, location), 1))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
