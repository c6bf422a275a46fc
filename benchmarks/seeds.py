"""`python benchmarks/seeds.py [--seeds 0 1 2]`: the result table: d-OPSD and its two controls,
several seeds, on test.

Each row is trained from the same base with params.yaml's settings, selected on validation and
tested once: `d_opsd`, the control `no_reveal` (reveal ratio 0: the teacher is the base, nothing can
be learnt) and the control `rft` (fine-tuning on the rollouts that d-OPSD keeps: the filter without
the teacher). Runs live in work/seeds/<row>/ and are continued where they stopped; the table goes to
benchmarks/seeds.md and benchmarks/seeds.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "d_opsd": ("d_opsd", {}),
    "no_reveal": ("d_opsd", {"reveal_ratio": 0.0}),
    "rft": ("rft", {}),
}
RATE = 1e-3  # the same for all three, so that they differ in nothing else
STAGES = ("train", "evaluate", "select", "test")


def workspace(row: str) -> Path:
    """A folder with the data, the base and this row's settings."""
    folder = ROOT / "work" / "seeds" / row
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "base"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    method, changes = ROWS[row]
    raw["method"][method] |= changes
    raw["train"]["learning_rate"], raw["method"][method]["train"] = RATE, {}
    raw["tracking"]["enabled"] = False
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    return folder


def run(row: str, seed: int) -> dict[str, Any]:
    folder, method = workspace(row), ROWS[row][0]
    cell = folder / "runs" / "sudoku" / method / str(seed)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for stage in STAGES:
        command = [
            sys.executable,
            "-m",
            "dopsd",
            stage,
            "--task",
            "sudoku",
            "--method",
            method,
            "--seed",
            str(seed),
        ]
        subprocess.run(command, cwd=folder, env=env, check=True)
    tested = json.loads((cell / "test" / "paired.json").read_text())
    found = tested["protocols"][tested["selected"]["protocol"]]
    return {
        "row": row,
        "seed": seed,
        "base": found["base"]["accuracy"],
        "trained": found["best"]["accuracy"],
        "difference": found["paired"]["difference"],
        "interval": found["paired"]["interval"],
        "whole": [found["base"]["whole"], found["best"]["whole"]],
        "n": found["base"]["n"],
        "selected_update": tested["selected"]["update"],
        "rollouts": json.loads((cell / "train.json").read_text())["rollouts"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        (
            "| run | seed | base | trained | difference, paired 95% interval | whole grids | update"
            " | rollouts |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        low, high = (100 * x for x in r["interval"])
        whole = f"{100 * r['whole'][0]:.1f} -> {100 * r['whole'][1]:.1f}"
        lines.append(
            f"| {r['row']} | {r['seed']} | {100 * r['base']:.2f} | {100 * r['trained']:.2f} |"
            f" {100 * r['difference']:+.2f} [{low:+.2f}, {high:+.2f}] | {whole} |"
            f" {r['selected_update']} | {r['rollouts']} |"
        )
    for row in dict.fromkeys(r["row"] for r in rows):
        gaps = [100 * r["difference"] for r in rows if r["row"] == row]
        lines.append(
            f"| **{row}** | mean of {len(gaps)} | | | **{sum(gaps) / len(gaps):+.2f}** | | | |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    a = parser.parse_args()
    rows = [run(row, seed) for row in a.rows for seed in a.seeds]
    sys.path.insert(0, str(ROOT))
    from dopsd.core.fingerprint import sha256

    base = sha256(ROOT / "base" / "sudoku" / "model.safetensors")
    n = rows[0]["n"]
    text = (
        f"Cell accuracy in % on {n} test puzzles, greedy, selected on validation. Base"
        f" `{base[:16]}`.\n\n{table(rows)}"
    )
    (ROOT / "benchmarks" / "seeds.md").write_text(text)
    (ROOT / "benchmarks" / "seeds.json").write_text(
        json.dumps({"base": base, "rows": rows}, indent=1) + "\n"
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
