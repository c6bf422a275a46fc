"""The log of a training run: a line of JSON for each update."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dopsd.core.paths import LOG

if TYPE_CHECKING:
    from pathlib import Path


class RunLog:
    """The log's lines, in every process; one process writes them to the folder.

    Every checkpoint gets a copy of the lines, as the file on disk may change.
    """

    def __init__(self, scratch: Path, writes: bool) -> None:
        self.path, self.writes = scratch / LOG, writes
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        """All lines."""
        return "".join(self.lines)

    def add(self, update: int, figures: dict[str, float], seconds: float) -> None:
        """Append one update.

        Args:
            update: the number of finished updates.
            figures: metrics by name; DVC does not compare those under `time/`.
            seconds: time of the update with its collect.
        """
        line = json.dumps(
            {"update": update, **figures, "time/update_seconds": round(seconds, 3)}, sort_keys=True
        )
        self.lines.append(line + "\n")
        if self.writes:
            with self.path.open("a", encoding="utf-8") as out:
                out.write(self.lines[-1])

    def restore(self, update: int, saved_log: Path | None) -> None:
        """Restore the log as it was at the checkpoint; later lines will be written again."""
        lines = (
            saved_log.read_text(errors="replace", encoding="utf-8").splitlines()
            if saved_log and saved_log.exists()
            else []
        )
        self.lines = [line + "\n" for line in lines if _update_of(line) <= update]
        if self.writes:
            tmp = self.path.with_suffix(".tmp")
            tmp.write_text(self.text, encoding="utf-8")
            tmp.rename(self.path)


def _update_of(line: str) -> float:
    try:
        return float(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
