"""Warn where rows changed after `dopsd prepare`: a single stage would use the old problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.core.progress import is_main_rank, log
from dopsd.tasks.common.storage import as_lines

if TYPE_CHECKING:
    from dopsd.tasks.custom.task import CustomTask


def warn_if_changed(task: CustomTask, split: str, prepared: Path) -> None:
    """Log one line if a file of rows is newer than a split's problems, and gives other problems.

    A file that is older than the problems is not read, so this costs nothing where nothing changed.

    Args:
        task: the task.
        split: name of the split.
        prepared: its file of problems.
    """
    sources = [Path(source.path) for source in task.config.sources.values()]
    if not is_main_rank() or not prepared.is_file() or not all(p.is_file() for p in sources):
        return
    newer = [p for p in sources if p.stat().st_mtime > prepared.stat().st_mtime]
    if newer and _differs(task, split, prepared):
        log(
            f"warning: {', '.join(map(str, newer))} changed since `dopsd prepare --task"
            f" {task.name}`, and {prepared} has the old problems; run it, or `dopsd repro`"
        )


def _differs(task: CustomTask, split: str, prepared: Path) -> bool:
    try:
        return as_lines(task.build()[split]) != prepared.read_text(encoding="utf-8")
    except (DopsdError, UnicodeDecodeError):  # prepare or the reader names the fault
        return True
