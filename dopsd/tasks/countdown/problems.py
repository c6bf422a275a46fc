"""Problems of Countdown, made here, and how a small base writes their solutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.tasks.common.rows import new_problem
from dopsd.tasks.countdown.solver import given, joined

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from dopsd.core.types import Problem
    from dopsd.tasks.countdown.solver import Term

TOP = 100  # targets of generated problems are 1 to TOP, as in the published test rows


def prompt_of(operands: list[int], target: int) -> str:
    """Return the prompt of a problem."""
    return f"Numbers: {operands}\nTarget: {target}"


def problem_from(operands: list[int], target: int) -> Problem:
    """Return the problem; its answer is the target, which many expressions reach."""
    return new_problem(
        "countdown", prompt_of(operands, target), str(target), numbers=operands, target=target
    )


def make_problem(count: int, largest: int, operators: str, rng: random.Random) -> Problem | None:
    """Join `count` random numbers in pairs by random operations with whole results.

    Returns None if no operation has such a result, or the last result is not in 1 to TOP.
    """
    operands = [rng.randint(1, largest) for _ in range(count)]
    pool = [given(n) for n in operands]
    while len(pool) > 1:
        rng.shuffle(pool)
        left, right = pool.pop(), pool.pop()
        found = [term for sign in operators if (term := joined(left, sign, right))]
        if not found:
            return None
        pool.append(rng.choice(found))
    return problem_from(operands, pool[0].value) if 1 <= pool[0].value <= TOP else None


def working(term: Term) -> str:
    """Return the steps of a term as reasoning, and its expression as the answer."""
    steps = ",".join(term.steps)
    return f"<reasoning>{steps}</reasoning><answer>\\boxed{{{term.text}}}</answer>"


def habit(operands: Sequence[int], target: int) -> Term:
    """Return what a careless solver writes: a rule of thumb, which misses most targets.

    A target above the sum: multiply the two largest numbers and add the others; else add up all but
    the smallest, and subtract it.
    """
    first, second, *others = [given(n) for n in sorted(operands, reverse=True)]
    is_large = target > sum(operands)
    term = joined(first, "*" if is_large or not others else "+", second)
    for i, other in enumerate(others):
        sign = "-" if not is_large and i == len(others) - 1 else "+"
        term = term and joined(term, sign, other)
    assert term  # sums and products of numbers in falling order are never negative
    return term
