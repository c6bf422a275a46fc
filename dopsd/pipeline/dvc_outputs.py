"""What DVC has recorded: outputs with their files in its cache, and what has changed since."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outputs:
    """Outputs as dvc.lock has them, read once: a matrix has tens of thousands of lines."""

    def __init__(self) -> None:
        from dvc.repo import Repo
        from ruamel.yaml import YAML

        lock, repo = Path("dvc.lock"), Repo()
        stages = (YAML(typ="safe").load(lock) or {}).get("stages", {}) if lock.is_file() else {}
        outs = [out for stage in stages.values() for out in stage.get("outs", [])]
        self.digests = {Path(out["path"]): str(out["md5"]) for out in outs if "md5" in out}
        self.run_cache = Path(repo.stage_cache.cache_dir)
        self._cache = repo.cache.local

    def place(self, digest: str) -> Path:
        """Return the place of an object in the cache."""
        return Path(self._cache.oid_to_path(digest))

    def files(self, folder: Path) -> list[tuple[Path, Path]]:
        """Return each file of an output, and its place in the cache; none if it is no output."""
        digest = self.digests.get(folder, "")
        if not digest.endswith(".dir") or not self.place(digest).is_file():
            return []
        listing = json.loads(self.place(digest).read_text(encoding="utf-8"))
        return [(folder / item["relpath"], self.place(item["md5"])) for item in listing]

    def objects(self) -> set[Path]:
        """Return the objects of all outputs."""
        files = {cached for folder in self.digests for _, cached in self.files(folder)}
        return files | {self.place(digest) for digest in self.digests.values()}


def changed(stages: Iterable[str]) -> set[str]:
    """Return the dependencies and outputs of stages that are not as DVC recorded them.

    These are paths; DVC's own words for a changed command, or for a stage that does not exist.

    Args:
        stages: Names of stages; if empty, of all.
    """
    process = subprocess.run(
        [sys.executable, "-m", "dvc", "--wait-for-lock", "status", "--json", *stages],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if process.returncode:
        return {process.stderr}
    changes = [change for found in json.loads(process.stdout).values() for change in found]
    return {path for change in changes for path in _paths(change)}


def _paths(change: str | dict[str, dict[str, object]]) -> list[str]:
    return [change] if isinstance(change, str) else [p for paths in change.values() for p in paths]
