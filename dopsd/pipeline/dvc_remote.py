"""DVC's default remote, through which machines share results."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def remote_problem(folder: Path) -> str:
    """Return why DVC's default remote cannot share results; empty if it can.

    Args:
        folder: The workspace.
    """
    name = _config(folder, "core.remote")
    if not name:
        return (
            "DVC has no default remote here, so results could not reach the other machines; run"
            " `dvc remote add --local --default store ADDRESS` with an address that all share"
        )
    address = _config(folder, f"remote.{name}.url")
    if address.startswith(("http://", "https://")):
        return (
            f"DVC's default remote {name} is {address}, and DVC shares results by their settings"
            " (its run cache) at no http address; use a shared folder, S3 or ssh"
        )
    return ""


def _config(folder: Path, key: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "dvc", "config", key],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    return process.stdout.strip()
