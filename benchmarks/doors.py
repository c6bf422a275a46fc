"""`python benchmarks/doors.py [--folder DIR]`: what the flow costs over `dvc repro`, each in a
fresh clone of this commit.

Measures `make up` and the idle memory of its services, the embedded default through the deployment,
the same run again with nothing changed, and `dvc repro` with `dopsd publish` in another clone.
Ports 4200 and 5000 must be free. Prints one JSON line; exits 1 where the two dvc.lock differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
IDLE = 20.0  # seconds after which memory is looked at


def timed(folder: Path, *words: str) -> float:
    started = time.monotonic()
    subprocess.run(
        words, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return round(time.monotonic() - started, 1)


def clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def memory(folder: Path) -> float:
    """Megabytes of all services, what they share counted once (PSS)."""
    started = json.loads((folder / "work/services/services.json").read_text())
    processes = [psutil.Process(int(found["pid"])) for found in started.values()]
    processes += [child for process in processes for child in process.children(recursive=True)]
    return round(sum(process.memory_full_info().pss for process in processes) / 1e6)


def by_flow(folder: Path) -> dict[str, float]:
    services = (sys.executable, "infra/local/services.py")
    run = (str(BIN / "prefect"), "deployment", "run", "dopsd/train", "--watch")
    found = {"up_s": timed(folder, *services, "up")}
    try:
        time.sleep(IDLE)
        return found | {
            "idle_mb": memory(folder),
            "flow_s": timed(folder, *run),
            "flow_again_s": timed(folder, *run),
        }
    finally:
        timed(folder, *services, "down")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help="where the clones go (default: a temporary folder)"
    )
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="dopsd-doors-"))
    flow, dvc = clone(folder / "flow"), clone(folder / "dvc")
    found = by_flow(flow)
    found["dvc_s"] = timed(dvc, sys.executable, "-m", "dvc", "--wait-for-lock", "repro")
    found["publish_s"] = timed(dvc, sys.executable, "-m", "dopsd", "publish")
    plain = found["dvc_s"] + found["publish_s"]
    found |= {
        "overhead_s": round(found["flow_s"] - plain, 1),
        "ratio": round(found["flow_s"] / plain, 3),
    }
    is_same = (flow / "dvc.lock").read_bytes() == (dvc / "dvc.lock").read_bytes()
    sys.stdout.write(json.dumps(found | {"same_lock": is_same}) + "\n")
    return not is_same


if __name__ == "__main__":
    sys.exit(main())
