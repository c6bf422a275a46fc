"""Splits of generated problems: which problems may be in a split, and how they are drawn.

The split of a problem is a digest of its group (what splits must not share, such as its numbers),
and every split draws from a stream of its own: no split depends on the size of another.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.keys import key_from

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from dopsd.core.types import Problem

FRUITLESS = 20_000  # draws in a row without a new problem before giving up


def stream(task: str, split: str, seed: int) -> random.Random:
    """Return the random numbers that a split is drawn with."""
    return random.Random(key_from("problems", task, split, seed))


def split_of(task: str, group: str, seed: int) -> str:
    """Return the split of all problems of a group: an eighth each for validation and test."""
    share = key_from("split", task, group, seed) % 8
    return {0: "test", 1: "validation"}.get(share, "train")


def draw(
    stream: random.Random,
    count: int,
    make: Callable[[random.Random], Problem | None],
    identity: Callable[[Problem], Hashable],
    too_few: str,
) -> list[Problem]:
    """Draw distinct problems.

    Args:
        stream: source of randomness.
        count: number of problems.
        make: makes a problem; None: draw again.
        identity: equal for equal problems.
        too_few: the message if there are fewer, with {found} and {count}.

    Raises:
        DopsdError: if there are fewer.
    """
    problems: dict[Hashable, Problem] = {}
    fruitless = 0
    while len(problems) < count and fruitless < FRUITLESS:
        problem, before = make(stream), len(problems)
        if problem:
            problems.setdefault(identity(problem), problem)
        fruitless = 0 if len(problems) > before else fruitless + 1
    if len(problems) == count:
        return list(problems.values())
    raise DopsdError(too_few.format(found=len(problems), count=count), code=Code.TOO_FEW_PROBLEMS)
