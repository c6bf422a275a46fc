"""Problems of a task's rows: the prompt from its template, the answer, the solution."""

import hashlib
import json
from pathlib import Path
from string import Formatter
from typing import Any

from dopsd.core.errors import Code
from dopsd.tasks.common.answers import SCORED_BY
from dopsd.tasks.common.formats import extract
from dopsd.tasks.common.json_files import Figure, json_of
from dopsd.tasks.common.program import ROW
from dopsd.tasks.common.sources import Row, columns_found, encodable
from dopsd.tasks.custom.config import CustomTaskConfig, columns_of


def cell(row: Row, column: str, key: str, decimal: str = ".") -> str:
    """Return a cell as text: numbers as JSON has them, lists and objects as JSON.

    Args:
        decimal: the decimal mark of a number that is no text.
    """
    if column not in row.values:
        found = columns_found(row, [column])
        raise Code.SOURCE_ROW.error(
            f"{row.place}: no column {column}, which {key} names; the row has {found}"
        )
    value = row.values[column]
    text = as_text(value, decimal)
    if text is None or not text.strip():
        is_empty = value is None or isinstance(value, str | float)
        kind = f"is a value of type {type(value).__name__.lower()}"
        raise Code.SOURCE_ROW.error(
            f"{row.place}: column {column} ({key}) {'has no text or number' if is_empty else kind},"
            f" found {str(value)[:40]!r}; "
            + ("fill the cell, or remove the row" if is_empty else "write the column as text")
        )
    return encodable(row, column, text)


def as_text(value: Any, decimal: str = ".") -> str | None:  # noqa: ANN401  # any value of a dataset
    """Return a value as text; None for what is neither a text, a finite number nor JSON."""
    if value is None or isinstance(value, str):
        return value
    try:
        text = json_of(value)
        return text.replace(".", decimal) if isinstance(value, Figure | float) else text
    except (TypeError, ValueError, RecursionError):
        return None


class RowReader:
    """Makes problems from rows, by the columns and templates of a task's section."""

    def __init__(self, key: str, config: CustomTaskConfig) -> None:
        self.key, self.config = key, config
        self.parts = list(Formatter().parse(config.prompt))
        self.row_columns: list[str] = getattr(config.verifier, "columns", [])
        self.may_be_empty: str | None = getattr(config.verifier, "before", None)
        self.scored_by = _digest(config)
        self.decimal: str = getattr(config.verifier, "decimal", ".")

    def prompt(self, row: Row) -> str:
        """Return the prompt's template, filled with the row's cells."""
        cells = {name: self._filled(row, name) for name in columns_of(self.config.prompt)}
        return "".join(text + (cells[name] if name else "") for text, name, _, _ in self.parts)

    def _filled(self, row: Row, name: str) -> str:
        if name == "question":
            return cell(row, self.config.question, f"{self.key}.question")
        return cell(row, name, f"{self.key}.prompt")

    def answer(self, row: Row) -> str:
        """Return the row's answer, found by `gold_format` where that is set."""
        c = self.config
        text = cell(row, c.answer, f"{self.key}.answer", self.decimal)
        answer = extract(text, [c.gold_format]) if c.gold_format else text.strip()
        if answer is None:
            raise Code.SOURCE_ROW.error(
                f"{row.place}: column {c.answer} has no answer by {self.key}.gold_format, found"
                f" {text[-40:]!r}"
            )
        return answer

    def solution(self, row: Row) -> str | None:
        """Return the row's worked solution; None where the task has none."""
        column = self.config.solution
        return None if column is None else cell(row, column, f"{self.key}.solution")

    def extra(self, row: Row) -> dict[str, Any]:
        """Return what a problem carries: the cells that a program gets, and what scores it."""
        filled = [n for n in self.row_columns if n != self.may_be_empty or row.values.get(n)]
        cells = {name: cell(row, name, f"{self.key}.verifier") for name in filled}
        for name, text in cells.items():
            if fault := self.config.verifier.cell_fault(name, text):
                raise Code.SOURCE_ROW.error(
                    f"{row.place}: column {name} ({self.key}.verifier) {fault}, found"
                    f" {text[:60]!r}; mend the row"
                )
        return {SCORED_BY: self.scored_by} | ({ROW: cells} if cells else {})


def _digest(config: CustomTaskConfig) -> str:
    """Return 16 hex digits of all that decides a score: answer format, verifier and its files.

    A missing file counts as empty. Problems on disk carry the digits. So DVC and every fingerprint
    of a result see when they change.
    """
    settings = config.model_dump(include={"answer_format", "verifier"}, mode="json")
    hashed = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for key, name in sorted(config.verifier.files.items()):
        content = Path(name).read_bytes() if Path(name).is_file() else b""
        hashed.update(f"{key} {hashlib.sha256(content).hexdigest()}".encode())
    return hashed.hexdigest()[:16]
