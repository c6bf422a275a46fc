"""Read the rows of a `Source`: a .jsonl, .json, .csv or .parquet file, or a hub dataset.

Every row carries its location (`file:12` or `openai/gsm8k[train]:12`) for error messages.
"""

from __future__ import annotations

import csv
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dopsd.core.errors import TEMPORARY, Code, DopsdError, is_unicode
from dopsd.core.extras import require
from dopsd.core.progress import log
from dopsd.tasks.common.json_files import Cells, Figure, Numbered, json_file, json_lines, repeated

if TYPE_CHECKING:
    from dopsd.tasks.common.config import Source

T = TypeVar("T")
SHOWN = 3  # faulty rows to name; the others are counted
EMPTY: tuple[Any, ...] = (None, "", [])  # cells that say nothing
LARGE = 2**24  # bytes of a file that takes seconds to check
LONGEST_CELL = 2**31 - 1  # characters of a cell in a .csv file of rows; elsewhere 131072
SEPARATORS = ",;\t"  # of columns in a .csv file; spreadsheets choose by language


def _fault(place: str, message: str) -> DopsdError:
    return Code.SOURCE_FORMAT.error(f"{place}: {message}")


def csv_file(path: Path) -> Iterator[Numbered]:
    """Yield the rows as text, so that leading zeros stay; a row's number is its first line's."""
    with path.open(encoding="utf-8-sig", newline="") as stream, ExitStack() as stack:
        stack.callback(csv.field_size_limit, csv.field_size_limit(LONGEST_CELL))
        header_lines = [first := stream.readline()]  # more after blank lines and breaks in a name
        quotes = first.count('"')
        while (quotes % 2 or not header_lines[-1].strip()) and (line := stream.readline()):
            header_lines.append(line)
            quotes += line.count('"')
        if first.strip('"').lower().startswith("sep="):
            raise _fault(f"{path}:1", f"{first.strip()!r:.20} is Excel's, and no header; remove it")
        dialect = _dialect("".join(header_lines))
        records = _records(csv.reader(chain(header_lines, stream), dialect), path)
        begin, header = next(records, (1, []))
        if not header:
            raise _fault(f"{path}:1", "expected a header that names the columns")
        if name := repeated(filter(None, header)):
            raise _fault(
                f"{path}:{begin}",
                f"column {name} occurs twice in the header, separated by {dialect.delimiter!r};"
                " rename one",
            )
        for number, cells in records:
            if len(cells) != len(header):
                raise Code.SOURCE_ROW.error(
                    f"{path}:{number}: expected {len(header)} columns separated by"
                    f" {dialect.delimiter!r} as in the header, line {begin}, found {len(cells)}"
                )
            yield number, dict(zip(header, cells, strict=True))


def _dialect(header: str) -> type[csv.Dialect]:
    """Return strict csv; the most frequent mark of the header outside quotes separates columns."""

    class Strict(csv.excel):
        strict = True
        delimiter = max(SEPARATORS, key=re.sub('"[^"]*"', "", header).count)

    return Strict


def _records(lines: Any, path: Path) -> Iterator[tuple[int, list[str]]]:  # noqa: ANN401  # csv's
    """Yield the cells of each row that is not blank, with the line on which it begins."""
    while True:
        number = lines.line_num + 1
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            raise _fault(
                f"{path}:{number}",
                f"no csv row begins here ({error}); close its quotation mark, and double those"
                " within a cell",
            ) from error
        if any(cell[:1].isspace() and cell.lstrip().startswith('"') for cell in cells):
            raise _fault(
                f"{path}:{number}", "a space before a quotation mark, which cannot quote; remove it"
            )
        if cells:
            yield number, cells


def parquet_file(path: Path) -> Iterator[Numbered]:
    """Yield the rows of a Parquet file."""
    require(str(path), "pyarrow")
    from pyarrow import ArrowException, parquet

    try:
        yield from enumerate(arrow_rows(parquet.ParquetFile(path).iter_batches(), str(path)), 1)
    except (ArrowException, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _fault(str(path), f"not a readable parquet file ({lines[0][:200]})") from error


def arrow_rows(tables: Iterable[Any], place: str) -> Iterator[Cells]:
    """Yield the rows of Arrow tables; fractions are the shortest text of the column's type."""
    from pyarrow import struct

    for table in tables:
        _check_names(struct(list(table.schema)), place)
        columns = [
            [_exact(value, column.type) for value in column.to_pylist()] for column in table.columns
        ]
        for cells in zip(*columns, strict=True):
            yield dict(zip(table.schema.names, cells, strict=True))


def _check_names(kind: Any, place: str) -> None:  # noqa: ANN401  # an Arrow type
    fields = [kind.field(number) for number in range(kind.num_fields)]
    if name := repeated(field.name for field in fields):
        raise _fault(place, f"column {name} occurs twice; rename one")
    for field in fields:
        _check_names(field.type, place)


def _exact(value: Any, kind: Any) -> Any:  # noqa: ANN401  # any value, and its Arrow type
    """Return a value with fractions as written numbers: float32 0.1 is no 0.10000000149011612."""
    inner = getattr(kind, "value_type", kind)  # of a list, or of a column of categories
    if isinstance(value, float):
        number = inner.to_pandas_dtype()(value)
        return Figure(format(Decimal(str(number)), "f")) if isfinite(value) else value
    if isinstance(value, dict):
        return {field.name: _exact(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and hasattr(kind, "key_type"):  # a map
        return [[_exact(k, kind.key_type), _exact(v, kind.item_type)] for k, v in value]
    if isinstance(value, list) and inner is not kind:
        return [_exact(item, inner) for item in value]
    return value


@dataclass(frozen=True)
class Row:
    """One row of a dataset, by column, with its location."""

    values: Mapping[str, Any]  # cells by column
    file: str  # the file, or dataset and split
    number: int  # number of the row, or of its line, from 1

    @property
    def place(self) -> str:
        """Location of the row, as `file:number`."""
        return f"{self.file}:{self.number}"


def text_of(row: Row, *columns: str) -> str:
    """Return the text in the first of these columns that the row has."""
    column = next((name for name in columns if row.values.get(name) is not None), None)
    text = None if column is None else row.values[column]
    if not isinstance(text, str) or not text.strip():
        found = columns_found(row, columns)
        detail = f"found {text!r:.40}" if column is not None else f"columns found: {found}"
        raise Code.SOURCE_ROW.error(
            f"{row.place}: expected a text in column {' or '.join(columns)}; {detail}"
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
        raise Code.SOURCE_ROW.error(
            f"{row.place}: an unpaired surrogate in column {column}, which no tokenizer takes"
        )
    return text


def each(rows: Iterable[Row], make: Callable[[Row], T]) -> Iterator[tuple[Row, T]]:
    """Yield every row with what is made of it."""
    faults: list[DopsdError] = []
    for row in rows:
        try:
            made = make(row)
        except DopsdError as error:
            faults.append(error)
        else:
            yield row, made
    if faults:
        more = [f"and {len(faults) - SHOWN} more rows"] if len(faults) > SHOWN else []
        lines = [line for fault in faults[:SHOWN] for line in fault.lines]
        raise DopsdError(lines + more, code=faults[0].code)


class Watched(dict[str, Any]):
    """The cells of a row, which note the names that are read; who reads all reads each."""

    def __init__(self, cells: Mapping[str, Any]) -> None:
        super().__init__(cells)
        self.unnoted, self.read = cells, set[str]()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # any value of a dataset
        """Return a cell."""
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # any value of a dataset
        """Return a cell, or another value without one."""
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        """Yield the names; that this method is here keeps dict() from copying cells unread."""
        return super().__iter__()

    def items(self) -> Any:  # noqa: ANN401  # a view
        """Return names and cells."""
        self.read.update(self)
        return super().items()

    def values(self) -> Any:  # noqa: ANN401  # a view
        """Return the cells."""
        self.read.update(self)
        return super().values()


def unread(source: Source, key: str, make: Callable[[Row], object]) -> list[str]:
    """Make something of every row, and return the columns with cells that nothing reads.

    Returns:
        The columns; of those that are unread in some rows only, in how many.
    """
    if (size := Path(source.path).stat().st_size) > LARGE:
        log(f"{key}: {source.path}: reading {size >> 20} MB of rows")
    counts, total = Counter[str](), 0
    rows = (replace(row, values=Watched(row.values)) for row in read_rows(source, key))
    for row, _ in each(rows, make):
        total += 1
        cells: Any = row.values
        counts.update(n for n, v in cells.unnoted.items() if n not in cells.read and v not in EMPTY)
    some = {n: f"{n} ({count} of {total} rows)" for n, count in counts.items() if count < total}
    return [some.get(name, name) for name in counts]


def read_rows(source: Source, key: str) -> Iterator[Row]:
    """Return the rows of a source.

    Args:
        key: key of params.yaml that names the source, such as data.gsm8k.train.path.

    Raises:
        DopsdError: if the source cannot be read; with exit code 75 if the hub may answer later.
    """
    path = Path(source.path)
    is_no_name = source.path.count("/") > 1 or source.path.startswith((".", "/", "~"))
    is_file = path.suffix in READERS or is_no_name or path.exists()
    return read_file(path, key) if is_file else _hub_rows(source, key)


def read_file(path: Path, key: str) -> Iterator[Row]:
    """Return the rows of a file, by its suffix."""
    if path.is_dir():
        raise Code.SOURCE_FORMAT.error(
            f"{key}: {path}: is a folder; name one file, and merge parts into one"
        )
    if not path.is_file():
        suffix = "" if path.suffix in READERS else f"; it must end in {', '.join(READERS)}"
        raise Code.SOURCE_MISSING.error(
            f"{key}: {path}: no such file; add the file, or name another file or a hub dataset"
            f"{suffix}"
        )
    if path.suffix not in READERS:
        raise Code.SOURCE_FORMAT.error(
            f"{key}: {path}: expected a file that ends in {', '.join(READERS)}"
        )
    return _with_read_errors(path)


def _with_read_errors(path: Path) -> Iterator[Row]:
    """Yield the rows; turn a reader's error into one line."""
    try:
        for number, cells in READERS[path.suffix](path):
            yield Row(cells, str(path), number)
    except UnicodeDecodeError as error:
        raise Code.SOURCE_FORMAT.error(
            f"{path}: not UTF-8 text ({error}); save the file as UTF-8"
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
        raise Code.HUB.error(
            f"{key}: could not read {dataset} from the Hugging Face hub"
            f" ({_first_line(error)}{offline}); check the name and the network, or name a local"
            f" file ({', '.join(READERS)})",
            2 if offline else TEMPORARY,
        ) from error
    location = f"{source.path}[{source.split}]"
    tables = rows.with_format("arrow").iter(batch_size=1000)
    return (Row(cells, location, n) for n, cells in enumerate(arrow_rows(tables, location), 1))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
