"""Solve Countdown by search: expressions over all numbers, and the steps that compute them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BINDS = {"+": 0, "-": 0, "*": 1, "/": 1}  # how tightly an operator binds
OPERATORS = "".join(BINDS)


@dataclass(frozen=True)
class Term:
    """A whole number with the expression that gives it.

    Attributes:
        value: the number.
        text: the expression, with as few brackets as it needs.
        operator: the last operation; None for a number as given.
        steps: the operations, such as `3+5=8`, in the order of computing.
    """

    value: int
    text: str
    operator: str | None = None
    steps: tuple[str, ...] = ()


def given(number: int) -> Term:
    """Return a number as it is given."""
    return Term(number, str(number))


def joined(left: Term, operator: str, right: Term) -> Term | None:
    """Join two terms; None if the result is no whole number, or negative."""
    a, b = left.value, right.value
    if (operator == "-" and b > a) or (operator == "/" and (b == 0 or a % b)):
        return None
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[operator]
    binds, tightest = BINDS[operator], 2
    left_binds, right_binds = (BINDS.get(term.operator or "", tightest) for term in (left, right))
    first = left.text if left_binds >= binds else f"({left.text})"
    is_loose = right_binds < binds or (right_binds == binds and operator in "-/")
    second = f"({right.text})" if is_loose else right.text
    step = f"{a}{operator}{b}={value}"
    return Term(value, first + operator + second, operator, (*left.steps, *right.steps, step))


def terms(pool: Sequence[Term], operators: str) -> Iterator[Term]:
    """Yield every term that uses the whole pool, in a fixed order: by operators, left to right."""
    if len(pool) == 1:
        yield pool[0]
        return
    for operator in operators:
        for i, left in enumerate(pool):
            for j, right in enumerate(pool):
                is_swapped = operator in "+*" and (right.value, j) > (left.value, i)
                if i == j or is_swapped:  # sums and products begin with the larger number
                    continue
                if term := joined(left, operator, right):
                    rest = [p for k, p in enumerate(pool) if k not in (i, j)]
                    yield from terms([*rest, term], operators)


def solve(numbers: Sequence[int], target: int, operators: str = OPERATORS) -> Term | None:
    """Return the first term that reaches the target; None if there is none.

    The search takes about a millisecond for three numbers, and seconds for six.
    """
    pool = [given(number) for number in sorted(numbers, reverse=True)]
    return next((term for term in terms(pool, operators) if term.value == target), None)
