"""Make the table of results: d-OPSD and two controls on test, for several seeds.

    python benchmarks/seeds.py [--seeds 0 1 2]

Each row trains from the same base with the settings of params.yaml, is selected on validation and
tested once. The rows are `d_opsd`, the control `no_reveal` (reveal ratio 0: the teacher is the
base, so there is nothing to learn) and the control `rft` (fine-tuning on the rollouts that d-OPSD
keeps, without the teacher). Runs are in work/seeds/<row>/ and continue after an interruption. The
table goes to benchmarks/seeds.md and benchmarks/seeds.json.
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

from dopsd.config.profiles.layers import completed

ROOT = Path(__file__).parents[1]
ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "d_opsd": ("d_opsd", {}),
    "no_reveal": ("d_opsd", {"reveal_ratio": 0.0}),
    "rft": ("rft", {}),
}
RATE = 1e-3  # learning rate of all rows, so that they differ in nothing else
STAGES = ("train", "evaluate", "select", "test")


def workspace(row: str) -> Path:
    """Make a folder with the data, the base and a row's settings."""
    folder = ROOT / "work" / "seeds" / row
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "base"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    raw = completed(yaml.safe_load((ROOT / "params.yaml").read_text()))
    method, changes = ROWS[row]
    raw["method"][method] |= changes
    raw["train"]["learning_rate"], raw["method"][method]["train"] = RATE, {}
    raw["tracking"]["enabled"] = False
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    return folder


def run(row: str, seed: int) -> dict[str, Any]:
    """Run all stages of one row and seed, and return the figures of the table."""
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
    result = tested["protocols"][tested["selected"]["protocol"]]
    return {
        "row": row,
        "seed": seed,
        "base": result["base"]["accuracy"],
        "trained": result["best"]["accuracy"],
        "difference": result["paired"]["difference"],
        "interval": result["paired"]["interval"],
        "whole": [result["base"]["whole"], result["best"]["whole"]],
        "n": result["base"]["n"],
        "selected_update": tested["selected"]["update"],
        "rollouts": json.loads((cell / "train.json").read_text())["rollouts"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures of all runs as a Markdown table, with a mean for each row."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
