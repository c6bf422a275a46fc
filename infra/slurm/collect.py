"""`python infra/slurm/collect.py`: bring the finished cells of a job array back from work/array/,
and remove their worktrees.

A worktree shares this folder's DVC cache. So a cell comes back when its entries in the worktree's
dvc.lock are copied to this folder's and DVC checks them out. Nothing is computed: where code or
settings have changed since, `dvc status` says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.pipeline.writer_lock import WriterLock

ARRAY = Path("work/array")
LOCK = Path("dvc.lock")
YAML_1_2 = YAML()


def collect(folder: Path) -> None:
    """Bring back one cell; `folder` is named after it."""
    lock_data = YAML_1_2.load(LOCK) if LOCK.exists() else {"schema": "2.0", "stages": {}}
    cell_entries = YAML_1_2.load(folder / LOCK)["stages"]
    stages = {
        name: entry for name, entry in cell_entries.items() if name.endswith(f"@{folder.name}")
    }
    lock_data["stages"].update(stages)
    tmp = LOCK.with_name(f".{LOCK.name}.tmp")
    YAML_1_2.dump(lock_data, tmp)
    tmp.rename(LOCK)
    subprocess.run(
        [sys.executable, "-m", "dvc", "--wait-for-lock", "checkout", "--quiet", "--force", *stages],
        check=True,
    )
    for path in [
        *folder.glob("work/train-*"),
        *folder.glob("work/eval/*"),
        *folder.glob("work/record/*"),
    ]:
        target = path.relative_to(folder)  # what a longer run, and `dopsd publish`, go on from
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            path.rename(target)
    subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    log(f"collect: {folder}: {len(stages)} stages are here now")


def main() -> int:
    """Collect what is finished and name what is not; 1 where a worktree stays."""
    folders = sorted(path for path in ARRAY.glob("*") if path.is_dir())
    finished = [folder for folder in folders if (folder / "work" / "finished").exists()]
    try:
        with WriterLock("collect"):
            for folder in finished:
                collect(folder)
    except (DopsdError, subprocess.CalledProcessError) as error:
        log(f"collect: {error}; what was not collected is still in {ARRAY}")
        return 1
    for folder in folders:
        if folder not in finished:
            log(
                f"collect: {folder}: not finished; submit its element again, and it continues there"
            )
    return int(finished != folders)


if __name__ == "__main__":
    os.environ["DVC_NO_ANALYTICS"] = "1"
    sys.exit(main())
