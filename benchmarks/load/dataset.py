"""An own task with many rows: prepare, check, train, score; each size is twice the one before.

    python benchmarks/load/dataset.py [rows ...]

Rows are 4x4 puzzles, which the tests' toy base reads. Fails if a row is missing or there twice.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
from pathlib import Path

from measured_command import Measured, dopsd, say, table, toy_project

SIZES = (12_500, 25_000, 50_000, 100_000)
HELD_OUT = 40  # rows of validation, and of test
TASK = {
    "type": "custom",
    "train": {"path": "data/external/puzzles.csv"},
    "validation": HELD_OUT,
    "test": HELD_OUT,
    "question": "puzzle",
    "answer": "grid",
    "prompt": "{question}",
    "answer_format": {"tag": "answer"},
    "verifier": {"type": "exact", "white_space": "drop"},
}


def grids() -> list[str]:
    """Return all 288 solved 4x4 grids, row after row."""
    rows = [*itertools.permutations("1234")]
    found = []
    for grid in itertools.product(rows, repeat=4):
        columns = all(len(set(column)) == 4 for column in zip(*grid, strict=True))
        boxes = all(
            len({*grid[r][c : c + 2], *grid[r + 1][c : c + 2]}) == 4 for r in (0, 2) for c in (0, 2)
        )
        if columns and boxes:
            found.append("".join(map("".join, grid)))
    return found


def write_rows(path: Path, count: int) -> set[str]:
    """Write `count` different puzzles to a CSV file, and return them."""
    draw, solved, puzzles = random.Random(0), grids(), {}
    while len(puzzles) < count:
        grid = draw.choice(solved)
        blanks = {*draw.sample(range(16), 8)}
        puzzles["".join("0" if i in blanks else d for i, d in enumerate(grid))] = grid
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{puzzle},{grid}" for puzzle, grid in puzzles.items()]
    path.write_text("\n".join(["puzzle,grid", *lines]) + "\n")
    return {*puzzles}


def check(folder: Path, puzzles: set[str]) -> None:
    """Check that each row is in one split, once."""
    found = [
        json.loads(line)["prompt"]
        for split in ("train", "validation", "test")
        for line in (folder / f"data/puzzles/{split}.jsonl").read_text().splitlines()
    ]
    assert len(found) == len(puzzles) and {*found} == puzzles, f"{len(found)} of {len(puzzles)}"


def measure(folder: Path, size: int) -> list[Measured]:
    """Return what each command takes with `size` rows."""
    toy_project(
        folder,
        data__puzzles=TASK,
        matrix__tasks=["puzzles"],
        pretrain__tasks=[],
        train__updates=2,
        matrix__methods=["infill"],  # learns from wrong answers too
    )
    puzzles = write_rows(folder / "data/external/puzzles.csv", size)
    rows = [dopsd(folder, size, "task", "check", "puzzles", name="task check")]
    rows += [dopsd(folder, size, "prepare", "--task", "puzzles")]
    check(folder, puzzles)
    rows += [dopsd(folder, size, "evaluate_base", "--task", "puzzles")]
    return [*rows, dopsd(folder, size, "train", "--task", "puzzles", "--method", "infill")]


def main() -> None:
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for size in sizes for row in measure(Path(folder) / str(size), size)]
    say(f"\nNothing lost: {', '.join(map(str, sizes))} rows.\n\n{table(rows)}")


if __name__ == "__main__":
    main()
