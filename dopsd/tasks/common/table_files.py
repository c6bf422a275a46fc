"""Read .csv and .parquet files of rows: cells as the file has them."""

from __future__ import annotations

import csv
import re
from contextlib import ExitStack
from decimal import Decimal
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.extras import require
from dopsd.tasks.common.json_files import Figure, repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from dopsd.tasks.common.json_files import Cells, Numbered

LONGEST_CELL = 2**31 - 1  # characters of a cell in a .csv file of rows; elsewhere 131072
SEPARATORS = ",;\t"  # of columns in a .csv file; spreadsheets choose by language


def _fault(place: str, message: str) -> DopsdError:
    return DopsdError(f"{place}: {message}", code=Code.SOURCE_FORMAT)


def csv_file(path: Path) -> Iterator[Numbered]:
    """Yield the rows as text, so that leading zeros stay; a row's number is its first line's."""
    with path.open(encoding="utf-8-sig", newline="") as stream, ExitStack() as stack:
        stack.callback(csv.field_size_limit, csv.field_size_limit(LONGEST_CELL))
        header_lines = [first := stream.readline()]
        quotes = first.count('"')
        while quotes % 2 and (line := stream.readline()):  # a line break in a column's name
            header_lines.append(line)
            quotes += line.count('"')
        if first.strip('"').lower().startswith("sep="):
            raise _fault(f"{path}:1", f"{first.strip()!r:.20} is Excel's, and no header; remove it")
        records = _records(
            csv.reader(chain(header_lines, stream), _dialect("".join(header_lines))), path
        )
        _, header = next(records, (1, []))
        if not header:
            raise _fault(f"{path}:1", "expected a header that names the columns")
        if name := repeated(filter(None, header)):
            raise _fault(f"{path}:1", f"column {name} occurs twice; rename one")
        for number, cells in records:
            if len(cells) != len(header):
                raise DopsdError(
                    f"{path}:{number}: expected {len(header)} columns as in the header, found"
                    f" {len(cells)}",
                    code=Code.SOURCE_ROW,
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
    """Yield the rows of Arrow tables; fractions are the shortest text of their column's own type.

    Raises:
        DopsdError: if two columns have one name.
    """
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
