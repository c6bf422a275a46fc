"""`python infra/slurm/collect.py`: collect the finished runs of a job array from work/array/."""

from __future__ import annotations

import os
import subprocess
import sys

from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.pipeline.dvc.side_by_side import ARRAY, FINISHED, collect
from dopsd.pipeline.dvc.writer_lock import WriterLock


def main() -> int:
    """Collect all finished runs, log the others, and return 1 if a worktree stays."""
    folders = sorted(path for path in ARRAY.glob("*") if path.is_dir())
    finished = [folder for folder in folders if (folder / FINISHED).exists()]
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
