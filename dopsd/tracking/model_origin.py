"""Where a registered checkpoint came from: data, code and its address in MLflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dopsd.core.files import WORK, read_json
from dopsd.training.machine import MACHINE
from dopsd.training.run_identity import object_of

if TYPE_CHECKING:
    from dopsd.core.paths import RunKey


@dataclass(frozen=True)
class Origin:
    """Where a run's results came from, and where its checkpoint is."""

    data: dict[str, str]  # DVC's md5 of each split
    commit: str | None  # git commit of the code, with `+` if files differed; None: not recorded
    address: str  # of the checkpoint, such as models:/m-1234


def trained_commit(key: RunKey) -> str | None:
    """Return the git commit that trained a run, with `+` if tracked files differed from it.

    Returns:
        None for a run from DVC's cache, or from outside a repository.
    """
    fingerprint = read_json(key.folder / "train.json", "dopsd train")["fingerprint"]
    parts = object_of(WORK / fingerprint / MACHINE).get("parts", [])
    recorded: str | None = parts[-1].get("commit") if parts else None
    return recorded


def data_digests(task: str) -> dict[str, str]:
    """Return DVC's md5 of each split of a task, from dvc.lock."""
    lock = Path("dvc.lock")
    stages = (
        (yaml.safe_load(lock.read_text(encoding="utf-8")) or {}).get("stages", {})
        if lock.is_file()
        else {}
    )
    outs = [
        out
        for name, stage in stages.items()
        if name.startswith("prepare")
        for out in stage.get("outs", [])
    ]
    outs = [out for out in outs if out["path"].endswith(".jsonl")]
    return {
        Path(out["path"]).stem: out["md5"]
        for out in outs
        if Path(out["path"]).parts[:2] == ("data", task)
    }
