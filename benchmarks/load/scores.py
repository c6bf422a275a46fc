"""Many `dopsd score` at once in one folder, with a rule of ours and with math-verify's program.

    python benchmarks/load/scores.py [processes ...]

Each process scores a file of 500 generations and writes its verdicts; a second round writes all
verdicts to one file. Fails if a verdict differs from that of a process alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml
from measured_command import QUIET, Measured, say, table

SIZES = (4, 16, 64)
ROWS = 500
TASKS = ("gsm8k", "sums")  # sums: a task of params.yaml, scored by math-verify
SUMS = {
    "type": "custom",
    "train": {"path": "rows.csv"},
    "validation": 2,
    "test": 2,
    "question": "question",
    "answer": "answer",
    "prompt": "{question}",
    "answer_format": {"tag": "answer"},
    "verifier": {"type": "math"},
}
MAKE = "from toy_project import small_params; import yaml; print(yaml.safe_dump(small_params()))"


def make(folder: Path, files: int) -> None:
    """Write params.yaml and generations of sums, of which about 60% are right."""
    made = subprocess.run(
        [sys.executable, "-c", MAKE], env=os.environ | QUIET, check=True, capture_output=True
    )
    raw = yaml.safe_load(made.stdout)
    raw["data"]["sums"] = SUMS
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    for number in range(files):
        draw, lines = random.Random(number), []
        for _ in range(ROWS):
            a, b = draw.randint(1, 999), draw.randint(1, 999)
            answer = a + b if draw.random() < 0.6 else a - b
            row = {"question": f"{a}+{b}?", "ground_truth": str(a + b)}
            row["generation"] = f"<reasoning>{a} and {b}</reasoning><answer>{answer}</answer>"
            lines.append(json.dumps(row))
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def start(folder: Path, task: str, number: int, verdicts: str) -> subprocess.Popen[bytes]:
    """Start the scoring of a file."""
    words = ["score", "--task", task, f"{number}.jsonl", "--verdicts", verdicts]
    with (folder / f"output.{number}").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "dopsd", *words],
            cwd=folder,
            env=os.environ | QUIET,
            stdout=output,
            stderr=output,
        )


def at_once(folder: Path, task: str, size: int, is_shared: bool) -> Measured:
    """Score `size` files at once, and return time and memory of all processes together."""
    started, peak = time.monotonic(), 0.0
    names = ["shared" if is_shared else f"{task}.{n}" for n in range(size)]
    processes = [start(folder, task, n, f"{name}.out.jsonl") for n, name in enumerate(names)]
    while any(process.poll() is None for process in processes):
        peak = max(peak, proportional_mb())
        time.sleep(0.2)
    failed = [n for n, process in enumerate(processes) if process.returncode]
    if failed:
        text = (folder / f"output.{failed[0]}").read_text()[-1500:]
        raise AssertionError(f"{len(failed)} of {size} failed, the first with:\n{text}")
    name = f"{task}, one output" if is_shared else task
    row = Measured(name, size, time.monotonic() - started, 0.0, peak)
    say(f"{size:>7} {name:20} {row.seconds:8.1f} s {peak:8.0f} MB")
    return row


def proportional_mb() -> float:
    """Return the memory of this process' children, shared pages counted once, in MB."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += child.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**20


def check(folder: Path, task: str, size: int, alone: dict[int, bytes]) -> None:
    """Check each file's verdicts against those of a process that ran alone."""
    for number in range(size):
        found = (folder / f"{task}.{number}.out.jsonl").read_bytes()
        assert found == alone[number], f"{task}: verdicts of file {number} differ"
    left = [path.name for path in folder.glob(".*")]
    assert not left, f"left over: {left}"


def main() -> None:
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(folder, max(sizes))
        for task in TASKS:
            alone = {}
            for number in range(max(sizes)):
                assert start(folder, task, number, "alone.out").wait() == 0
                alone[number] = (folder / "alone.out").read_bytes()
            for size in sizes:
                rows.append(at_once(folder, task, size, is_shared=False))
                check(folder, task, size, alone)
                rows.append(at_once(folder, task, size, is_shared=True))
                shared = (folder / "shared.out.jsonl").read_bytes()
                assert shared in alone.values(), f"{task}: the shared output is of no process"
    say(f"\nNothing lost: {', '.join(map(str, sizes))} processes.\n\n{table(rows)}")


if __name__ == "__main__":
    main()
