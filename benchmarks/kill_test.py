"""`python benchmarks/kill_test.py [--kills 20] [--while-saving 5]`: SIGKILL training through `dvc repro`, again and again.

In a copy of this checkout (the first argument names the folder, default a temporary one) a run is trained without
interruption, its results are removed, and the same run is trained again while the whole process group is killed at
random times; some kills wait for a checkpoint that is being written. At the end adapters and tables must be the same
bytes. Prints one JSON line; exits 1 on any difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CELL = Path("runs/sudoku/d_opsd/0")


def copy_of_checkout(folder: Path) -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    raw = yaml.safe_load((folder / "params.yaml").read_text())
    raw["train"] |= {"updates": 120, "checkpoint_every": 1, "prompts_per_collect": 2}
    raw["method"]["d_opsd"] |= {"attempts": 4, "keep_threshold": 0.25, "updates_per_trajectory": 3}
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)


def start(folder: Path) -> subprocess.Popen[bytes]:
    env = os.environ | {"PYTHONPATH": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "train"]
    with (folder / "repro.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)


def result(folder: Path) -> dict[str, str]:
    sys.path.insert(0, str(ROOT))
    from dopsd.provenance import sha256

    files = [*(folder / CELL / "train").rglob("*"), folder / CELL / "train.csv", folder / CELL / "train.json"]
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(files) if path.is_file()}


def tracked_points(folder: Path) -> tuple[int, int]:
    """Updates that MLflow has of this run once the rest is sent, and how many metric points it has more than once."""
    sys.path.insert(0, str(ROOT))
    os.chdir(folder)
    from dopsd.layout import scratch_folder
    from dopsd.params import load_params
    from dopsd.publish import identity
    from dopsd.tracking import connect, sync, whole_rows

    cell = (load_params(), "sudoku", "d_opsd", 0)
    client, scratch = connect(identity(*cell).uri), scratch_folder(*cell)
    run = client.get_run(sync(client, identity(*cell), whole_rows(scratch / "log.jsonl"), scratch))
    steps = [[point.step for point in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics]
    return max(len(set(found)) for found in steps), sum(len(found) - len(set(found)) for found in steps)


def is_saving(folder: Path) -> bool:
    return any((folder / "work").glob("train-*/step-*.tmp"))


def latest(folder: Path) -> int:
    return max((int(p.name[5:]) for p in (folder / "work").glob("train-*/step-??????")), default=0)


def kill_once(folder: Path, draw: random.Random, is_waiting_for_save: bool) -> tuple[bool, bool]:
    """Start, let training get on, kill the group. Returns (killed, a checkpoint was half written)."""
    process, before = start(folder), latest(folder)
    while process.poll() is None and latest(folder) == before:  # until this process has made progress of its own
        time.sleep(0.002)
    deadline = time.monotonic() + draw.uniform(0.0, 1.5)
    while process.poll() is None:
        if is_saving(folder) if is_waiting_for_save else time.monotonic() > deadline:
            break
        time.sleep(0.0002)
    if process.poll() is not None:
        return False, False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True, is_saving(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--while-saving", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    folder = a.folder or Path(tempfile.mkdtemp())
    copy_of_checkout(folder)
    assert start(folder).wait() == 0, (folder / "repro.log").read_text()[-2000:]
    whole = result(folder)
    for path in [folder / "work", folder / "runs", folder / ".dvc" / "cache"]:
        shutil.rmtree(path)
    shutil.copyfile(ROOT / "dvc.lock", folder / "dvc.lock")
    draw, killed, half = random.Random(a.seed), 0, 0
    while killed < a.kills or half < a.while_saving:
        was_killed, was_half = kill_once(folder, draw, is_waiting_for_save=half < a.while_saving)
        if not was_killed:
            break
        killed, half = killed + 1, half + was_half
    code = start(folder).wait()
    same = result(folder) == whole
    updates, doubles = tracked_points(folder)
    figures = {"kills": killed, "while_saving": half, "identical": same, "files": len(whole), "exit": code}
    print(json.dumps(figures | {"tracked_updates": updates, "tracked_twice": doubles}))
    return 0 if same and not doubles and code == 0 and killed >= a.kills and half >= a.while_saving else 1


if __name__ == "__main__":
    sys.exit(main())
