"""Disk of finished runs: what the estimate says, and what is there. `python benchmarks/disk.py`.

Makes a matrix of 2 methods x 2 seeds of the embedded task with 6 checkpoints each in a scratch
folder, first with `checkpoints.keep: all`, then with `best_and_last`. A file counts once, however
many names it has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.pipeline.disk_model import bytes_of

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "matrix.methods": ["d_opsd", "rft"],
    "matrix.seeds": [0, 1],
    "data.sudoku.validation": 12,
    "data.sudoku.test": 12,
    "train.updates": 12,
    "train.checkpoint_every": 2,
    "train.prompts_per_collect": 2,
    "method.d_opsd.keep_threshold": 0.0,
    "method.rft.keep_threshold": 0.0,
    "tracking.enabled": True,
}
FOLDERS = ("work", "runs", ".dvc/cache", "mlartifacts")


def is_checkpoint(path: Path) -> bool:
    """Tell whether a file is one of weights, or of what resuming needs."""
    with path.open("rb") as file:
        return path.name.startswith(("trainer", "batches")) or b'"base_model' in file.read(4096)


def taken() -> tuple[int, int]:
    """Return bytes of the checkpoints of this folder, and of the same if each name were a copy."""
    files, copies = {}, 0
    for folder in FOLDERS:
        for path in Path(folder).rglob("*"):
            if path.is_file() and is_checkpoint(path):
                files[path.stat().st_ino] = path.stat().st_size
                copies += path.stat().st_size
    return sum(files.values()), copies


def dopsd(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "dopsd", *words], check=True, capture_output=True)


def figures_of(params: Params) -> dict[str, int]:
    measured, copies = taken()
    estimate = sum(bytes_of(params, run) for run in params.runs)
    return {"estimate": estimate, "measured": measured, "if each name were a copy": copies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    out = args.out.resolve() if args.out else None
    os.environ |= {"PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1"}
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    figures = {}
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(["git", "clone", "--quiet", ROOT, f"{tmp}/project"], check=True)
        os.chdir(f"{tmp}/project")
        changes = [w for k, v in SETTINGS.items() for w in ("--set", f"{k}={json.dumps(v)}")]
        dopsd("params", *changes)
        for keep in ("all", "best_and_last"):
            dopsd("params", "--set", f"checkpoints.keep={keep}")
            dopsd("repro")
            figures[keep] = figures_of(load_params())
        dopsd("publish")
        figures["best_and_last, published"] = figures_of(load_params())
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if out:
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
