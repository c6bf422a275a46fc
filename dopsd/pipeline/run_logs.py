"""Files in work/logs/: what each command of a run wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dopsd.core.files import WORK

if TYPE_CHECKING:
    from pathlib import Path

LOGS = WORK / "logs"
KEPT_LOGS = 100  # files


def new_log(name: str) -> Path:
    """Return a new file for the output of a command; remove all but the newest files."""
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in sorted(LOGS.glob("*.log"))[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return LOGS / f"{started}-{name}.log"


def newest_log(since: float) -> str:
    """Return the newest file that was written to since then; empty if there is none."""
    files = {path: path.stat().st_mtime for path in LOGS.glob("*.log")}
    recent = [path for path, changed in files.items() if changed >= since]
    return str(max(recent)) if recent else ""
