"""Change lines of losses, sampler, scorers and resuming at random: do the tests see it?

    python tests/code_mutations.py [--lines 60] [--seed 0] [--room losses] [--only 3 14]

Each change turns one operator, number or word of code into another (+ into -, < into <=, 2 into 3,
and into or), in a copy of the checkout, and runs the tests of its room, then those of others that
name its module, until the first failure; those of its module come first. It prints each change
with what became of it, and how many were seen. Some change nothing that can be seen: read those
that no test sees, and ask the room's tests of the second tier about them by `--marked full`.
"""

import argparse
import ast
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import token
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {  # what is changed, and which tests are to see it
    "losses": (["dopsd/algorithms"], ["tests/unit/algorithms"]),
    "sampler": (["dopsd/rollout"], ["tests/unit/rollout", "tests/unit/api"]),
    "scorers": (["dopsd/tasks"], ["tests/unit/tasks", "tests/unit/evaluation"]),
    "resume": (["dopsd/training"], ["tests/unit/training"]),
}
SWAPPED = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "<": "<=", "<=": "<", ">": ">="}
SWAPPED |= {">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and", "True": "False"}
SWAPPED |= {"False": "True", "min": "max", "max": "min", "any": "all", "all": "any"}
SWAPPED["is"] = "is not"
DECLARING = ("import ", "from ", "def ", "class ", "@", "type ")  # begins of lines left alone
SECONDS = 1800  # after which tests count as hanging; others may be at work here


class Change(NamedTuple):
    """One token of a file, and what it becomes."""

    path: Path
    line: int
    start: int
    end: int
    new: str

    def applied(self) -> str:
        """Return the changed text of the file."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        text = lines[self.line - 1]
        lines[self.line - 1] = text[: self.start] + self.new + text[self.end :]
        return "".join(lines)


def changes(path: Path) -> list[Change]:
    """Return all changes of a file that leave it valid Python of another meaning."""
    source = path.read_text(encoding="utf-8")
    found = []
    for part in tokenize.generate_tokens(io.StringIO(source).readline):
        new = SWAPPED.get(part.string)
        if part.string == "is" and part.line[part.end[1] :].startswith(" not "):
            continue
        if part.type == token.NUMBER and part.string.isdecimal():
            new = str(int(part.string) + 1)
        if new and not part.line.lstrip().startswith(DECLARING):
            change = Change(path, part.start[0], part.start[1], part.end[1], new)
            if _means_another(source, change.applied()):
                found.append(change)
    return found


def _means_another(source: str, changed: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != ast.dump(ast.parse(changed))
    except SyntaxError:
        return False


def nearest_first(tests: list[str], path: Path) -> list[str]:
    """Return tests of these folders, and others that name the module, the nearest first."""
    module, folder = f"{path.parent.name}.{path.stem}", path.parent.name
    rooms = [ROOT / name for name in tests]
    found = {}
    for file in (ROOT / "tests/unit").rglob("test_*.py"):
        text, is_here = file.read_text(), any(room in file.parents for room in rooms)
        if is_here or module in text:
            found[file] = is_here, text.count(module), text.count(folder)
    return [str(file.relative_to(ROOT)) for file in sorted(found, key=found.get, reverse=True)]


def is_seen(change: Change, tests: list[str], marked: str = "") -> bool:
    """Return whether a test fails, or hangs, with the change; marked: only these tests."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", "work", "runs", "reports", "mlruns")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        (copy / change.path.relative_to(ROOT)).write_text(change.applied(), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *tests]
        command += ["-m", marked] if marked else []
        env = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        try:
            ran = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return True
    return ran.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)


def main() -> int:
    """Make the changes, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=60, help="number of changes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", choices=ROOMS, help="only here")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of changes, from 0")
    parser.add_argument("--marked", default="", help="tests with these marks, in place of others")
    given = parser.parse_args()
    rng, seen, made = random.Random(given.seed), Counter[str](), Counter[str]()
    rooms = [given.room] if given.room else list(ROOMS)
    for n in range(given.lines):
        room = rooms[n % len(rooms)]
        folders, tests = ROOMS[room]
        files = sorted(path for name in folders for path in (ROOT / name).rglob("*.py"))
        possible: list[Change] = []
        while not possible:  # files weigh by their length, as lines do
            path = rng.choices(files, [file.stat().st_size for file in files])[0]
            possible = changes(path)
        change = rng.choice(possible)
        if given.only and n not in given.only:
            continue
        verdict = is_seen(change, nearest_first(tests, path), given.marked)
        made[room] += 1
        seen[room] += verdict
        line = change.path.read_text(encoding="utf-8").splitlines()[change.line - 1].strip()
        where = f"{change.path.relative_to(ROOT)}:{change.line}"
        word = "seen" if verdict else "NOT SEEN"
        print(f"{n:2} {word:8} {where}: {line} [{change.start}: {change.new}]", flush=True)
    for room, count in made.items():
        print(f"{room}: {seen[room]} of {count} seen")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
