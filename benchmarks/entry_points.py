"""Compare the time of the flow with that of `dvc repro`, each in a fresh clone of this commit.

    python benchmarks/entry_points.py [--folder DIR]

Measured are `make up`, the idle memory of its services, the embedded run through the deployment,
the same run again without changes, and `dvc repro` with `dopsd publish` in another clone. Ports
4200 and 5000 must be free. Prints one JSON line; exits with 1 if the two dvc.lock differ.
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
IDLE = 20.0  # seconds to wait before memory is measured


def timed(folder: Path, *words: str) -> float:
    """Run a command and return its seconds."""
    started = time.monotonic()
    subprocess.run(
        words, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return round(time.monotonic() - started, 1)


def clone(folder: Path) -> Path:
    """Clone this repository into a folder."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def memory(folder: Path) -> float:
    """Return the memory of all services in MB; shared pages count once (PSS)."""
    started = json.loads((folder / "work/services/services.json").read_text())
    processes = [psutil.Process(int(service["pid"])) for service in started.values()]
    processes += [child for process in processes for child in process.children(recursive=True)]
    return round(sum(process.memory_full_info().pss for process in processes) / 1e6)


def by_flow(folder: Path) -> dict[str, float]:
    """Measure the services and two runs of the deployment."""
    services = (sys.executable, "infra/local/services.py")
    run = (str(BIN / "prefect"), "deployment", "run", "dopsd/train", "--watch")
    figures = {"up_s": timed(folder, *services, "up")}
    try:
        time.sleep(IDLE)
        return figures | {
            "idle_mb": memory(folder),
            "flow_s": timed(folder, *run),
            "flow_again_s": timed(folder, *run),
        }
    finally:
        timed(folder, *services, "down")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help="folder for the clones (default: a temporary folder)"
    )
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="dopsd-entry-points-"))
    flow, dvc = clone(folder / "flow"), clone(folder / "dvc")
    figures = by_flow(flow)
    figures["dvc_s"] = timed(dvc, sys.executable, "-m", "dvc", "--wait-for-lock", "repro")
    figures["publish_s"] = timed(dvc, sys.executable, "-m", "dopsd", "publish")
    plain = figures["dvc_s"] + figures["publish_s"]
    figures |= {
        "overhead_s": round(figures["flow_s"] - plain, 1),
        "ratio": round(figures["flow_s"] / plain, 3),
    }
    is_same = (flow / "dvc.lock").read_bytes() == (dvc / "dvc.lock").read_bytes()
    sys.stdout.write(json.dumps(figures | {"same_lock": is_same}) + "\n")
    return not is_same


if __name__ == "__main__":
    sys.exit(main())
