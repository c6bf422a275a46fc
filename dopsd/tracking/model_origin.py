"""Where a registered checkpoint came from: data, code and its address in MLflow."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Origin:
    """Where a run's results came from, and where its checkpoint is."""

    data: dict[str, str]  # DVC's md5 of each split
    commit: str  # git commit of the code
    address: str  # of the checkpoint, such as models:/m-1234


def commit() -> str:
    """Return the current git commit, or "unknown" outside a repository."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return head.stdout.strip() or "unknown"


def data_digests(task: str) -> dict[str, str]:
    """Return DVC's md5 of each split of a task, from dvc.lock."""
    lock = Path("dvc.lock")
    stages = (yaml.safe_load(lock.read_text()) or {}).get("stages", {}) if lock.is_file() else {}
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
