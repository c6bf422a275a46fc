"""Tables of figures as csv files, and training logs as rows."""

import csv
from pathlib import Path
from typing import Any

from dopsd.core.errors import Code
from dopsd.core.files import parse_object

NAMES = ("protocol",)  # columns that stay text: a protocol may be named 256


def read_log(path: Path) -> list[dict[str, float]]:
    """Read the rows of a training log.

    Raises:
        DopsdError: if a line is not a JSON object; the message names file and line.
    """
    return [
        parse_object(line, f"{path}:{number}")
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
    ]


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as csv, the column `update` first; a figure that a row lacks stays empty."""
    names = sorted(
        {name for row in rows for name in row}, key=lambda name: (name != "update", name)
    )
    tmp = path.with_name(f".{path.name}.tmp")
    with tmp.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    tmp.rename(path)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a csv file that write_table wrote.

    Numbers become numbers, names stay text, empty cells are left out.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Code.RESULT_DAMAGED.error(
            f"{path}: not a csv table ({error}); restore the file, or create it again"
        ) from error
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise Code.RESULT_DAMAGED.error(
                f"{path}:{number}: the number of cells differs from the header; restore the file,"
                " or create it again"
            )
    return [
        {k: text if k in NAMES else _number(text) for k, text in row.items() if text != ""}
        for row in rows
    ]


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
