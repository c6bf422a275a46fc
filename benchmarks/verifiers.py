"""Garbage through every verifier: `python benchmarks/verifiers.py [count]` prints mean and slowest milliseconds a text.

Texts are seeded random fragments of what extraction looks for, up to a few thousand characters, with long runs.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from texts import FRAGMENTS

from dopsd.config import Data
from dopsd.tasks import load_task
from dopsd.types import Problem, Task

COUNT = 10_000
LONGEST = 4000  # characters: about 512 tokens
ASKED = {"sudoku": "0204032001400402", "gsm8k": "How many?", "math500": "What is it?", "countdown": "49 55 53 51"}


def garbage(draw: random.Random) -> str:
    length, parts = draw.randint(0, LONGEST), []
    while length > 0:
        part = draw.choice([*FRAGMENTS, "so we add ", "word "]) * draw.choice([1, 1, 1, 1, 3, 20, 1000])
        parts.append(part[:length])
        length -= len(part)
    return "".join(parts)


def problem_of(task: Task) -> Problem:
    found = task.ask(ASKED[task.name])
    return found if found.answer else Problem(found.id, found.prompt, "1", extra=found.extra)


def milliseconds(task: Task, texts: list[str]) -> list[float]:
    problem, taken = problem_of(task), []
    for text in texts:
        started = time.perf_counter()
        score = task.verify(problem, text).score
        taken.append(1000 * (time.perf_counter() - started))
        assert 0.0 <= score <= 1.0, (task.name, text)
    return taken


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    draw = random.Random(0)
    texts = [garbage(draw) for _ in range(count)]
    sys.stdout.write(f"{count} texts, {sum(map(len, texts)) / count:.0f} characters on average\n")
    for name in ASKED:
        taken = milliseconds(load_task(name, Data()), texts)
        mean = sum(taken) / count
        sys.stdout.write(f"{name:10} mean {mean:.3f} ms, slowest {max(taken):.1f} ms\n")
        assert mean < 1, f"{name}: mean over 1 ms"


if __name__ == "__main__":
    main()
