"""`python infra/slurm/collect.py`: collect the finished runs of a job array from work/array/.

A worktree shares this folder's DVC cache. So a run is collected by copying its entries from the
worktree's dvc.lock to this folder's, and checking them out with DVC. Then the worktree is removed.
Nothing is computed. If code or settings have changed since, `dvc status` shows it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.pipeline.dvc.previous import keep
from dopsd.pipeline.dvc.writer_lock import WriterLock

ARRAY = Path("work/array")
LOCK = Path("dvc.lock")
YAML_1_2 = YAML()


def collect(folder: Path) -> None:
    """Collect one run; its worktree is named TASK-METHOD-SEED."""
    lock_data = YAML_1_2.load(LOCK) if LOCK.exists() else {"schema": "2.0", "stages": {}}
    cell_entries = YAML_1_2.load(folder / LOCK)["stages"]
    if key := next((r.key for r in load_params().runs if r.key.stage == folder.name), None):
        log(f"collect: {keep(key) or folder}")
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
        *folder.glob("runs/*/*/*/train/step-*"),  # DVC has their digests alone
    ]:
        target = path.relative_to(folder)  # longer runs and `dopsd publish` continue from these
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.parts[0] == "runs" and target.exists():  # of other settings
            shutil.rmtree(target)
        if not target.exists():
            path.rename(target)
    subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    log(f"collect: {folder}: collected {len(stages)} stages")


def main() -> int:
    """Collect all finished runs, log the others, and return 1 if a worktree stays."""
    folders = sorted(path for path in ARRAY.glob("*") if path.is_dir())
    finished = [folder for folder in folders if (folder / "work" / "finished").exists()]
    try:
        with WriterLock("collect"):
            for folder in finished:
                collect(folder)
    except (DopsdError, subprocess.CalledProcessError) as error:
        log(f"collect: {error}; runs that were not collected are still in {ARRAY}")
        return 1
    for folder in folders:
        if folder not in finished:
            log(f"collect: {folder}: not finished; submit the array element again to continue")
    return int(finished != folders)


if __name__ == "__main__":
    os.environ["DVC_NO_ANALYTICS"] = "1"
    sys.exit(main())
