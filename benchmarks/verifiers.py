"""Feed garbage to every verifier, and print the mean and the largest time of a text.

    python benchmarks/verifiers.py [count]

The texts are 10,000 examples of hypothesis, then as many long texts of random fragments that answer
extraction looks for. Fails if a score is out of range or the mean exceeds 1 ms.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hypothesis import HealthCheck, given, settings
from texts import FRAGMENTS, garbage

from dopsd.core.types import Problem
from dopsd.tasks.common.task import Task
from dopsd.tasks.registry import TASKS, load_task

COUNT = 10_000
LONGEST = 4000  # characters: about 512 tokens
ASKED = {
    "sudoku": "0204032001400402",
    "gsm8k": "How many?",
    "math500": "What is it?",
    "countdown": "49 55 53 51",
}


def long_garbage(count: int) -> list[str]:
    """Return seeded texts of random fragments with long repetitions, up to LONGEST characters."""
    draw, texts = random.Random(0), []
    for _ in range(count):
        length, parts = draw.randint(0, LONGEST), []
        while length > 0:
            part = draw.choice([*FRAGMENTS, "so we add ", "word "]) * draw.choice(
                [1, 1, 1, 1, 3, 20, 1000]
            )
            parts.append(part[:length])
            length -= len(part)
        texts.append("".join(parts))
    return texts


def hypothesis_garbage(count: int) -> list[str]:
    """Return examples of the tests' hypothesis strategy."""
    texts: list[str] = []

    @settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(garbage())
    def keep(text: str) -> None:
        texts.append(text)

    keep()
    return texts


def problem_of(task: Task) -> Problem:
    """Return a task's example problem, with answer 1 if the question does not imply one."""
    asked = task.ask(ASKED[task.name])
    return asked if asked.answer else Problem(asked.id, asked.prompt, "1", extra=asked.extra)


def milliseconds(task: Task, texts: list[str]) -> list[float]:
    """Return the time to score each text, in ms."""
    problem, taken = problem_of(task), []
    for text in texts:
        started = time.perf_counter()
        score = task.verify(problem, text).score
        taken.append(1000 * (time.perf_counter() - started))
        assert 0.0 <= score <= 1.0, (task.name, text)
    return taken


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    for made in (hypothesis_garbage, long_garbage):
        texts = made(count)
        sys.stdout.write(
            f"{made.__name__}: {len(texts)} texts, {sum(map(len, texts)) / len(texts):.0f}"
            " characters on average\n"
        )
        for name in ASKED:
            taken = milliseconds(load_task(name, TASKS.config_class(name)()), texts)
            mean = sum(taken) / len(texts)
            sys.stdout.write(f"{name:10} mean {mean:.3f} ms, slowest {max(taken):.1f} ms\n")
            assert mean < 1, f"{name}: mean over 1 ms"


if __name__ == "__main__":
    main()
