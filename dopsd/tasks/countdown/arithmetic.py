"""Evaluate arithmetic expressions of a model by walking the syntax tree, with bounds; no eval()."""

from __future__ import annotations

import ast
import itertools
import operator
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dopsd.core.types import Problem
from dopsd.tasks.common.answers import closed, last_boxed, published_box
from dopsd.tasks.common.rows import new_problem

if TYPE_CHECKING:
    Operations = dict[type[ast.operator], Callable[[Any, Any], complex | Fraction]]

LONGEST = 200  # characters; six numbers and their operators need fewer than 60
DEEPEST = 30  # nested operations and brackets
LARGEST = 1e15  # magnitude of any intermediate value
HIGHEST_POWER = 64  # magnitude of any exponent
PLAIN: Operations = {  # of fractions, without rounding
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: Fraction(left) / Fraction(right),
}


def power(base: float, exponent: float) -> complex:
    """Return base ** exponent."""
    if abs(exponent) > HIGHEST_POWER:
        raise ValueError(f"an exponent over {HIGHEST_POWER}")
    result: complex = base**exponent
    return result


ALL = PLAIN | {ast.Div: operator.truediv, ast.Pow: power, ast.FloorDiv: operator.floordiv}


def numbers_of(text: str) -> list[int]:
    """Return the runs of digits as numbers, in order; none for a text over LONGEST characters."""
    return [int(run) for run in re.findall("[0-9]+", text)] if len(text) <= LONGEST else []


def value(text: str, operations: Operations = PLAIN) -> float | Fraction | None:
    """Return the value of an arithmetic expression, or None if it has no bounded value."""
    if len(text) > LONGEST or not re.fullmatch(r"[0-9+\-*/().\s]+", text, re.ASCII):
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, operations, DEEPEST)
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr, operations: Operations, depth: int) -> float | Fraction:
    result: Any
    if isinstance(node, ast.Constant):
        result = node.value
    elif not depth:
        raise ValueError("too deep")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        operand = _value(node.operand, operations, depth - 1)
        result = -operand if isinstance(node.op, ast.USub) else operand
    elif isinstance(node, ast.BinOp) and type(node.op) in operations:
        sides = (_value(side, operations, depth - 1) for side in (node.left, node.right))
        result = operations[type(node.op)](*sides)
    else:
        raise ValueError("not an operation on numbers")
    if isinstance(result, int | float | Fraction) and -LARGEST <= result <= LARGEST:
        return result
    raise ValueError(f"no real number up to {LARGEST:g}")  # a power can be complex


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
        found = [term for sign in operators if (term := _joined(left, sign, right))]
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
    term = _joined(first, "*" if is_large or not others else "+", second)
    for i, other in enumerate(others):
        sign = "-" if not is_large and i == len(others) - 1 else "+"
        term = term and _joined(term, sign, other)
    assert term  # sums and products of numbers in falling order are never negative
    return term


SIGNS = {"\\div": "/", "\\times": "*", "\\cdot": "*"}
LEFT = "0123456789+-*/() "  # characters of an expression before `=`
RIGHT = "0123456789. "  # first characters of a number after `=`


def extract(text: str) -> str:
    """Return the expression in a generation, by the published rule."""
    box = published_box(text)
    answer = closed(text, "answer") if box is None else None
    expression = box if box is not None else answer.strip() if answer is not None else text
    return left_of_number(_with_signs(expression))


def extract_strict(text: str) -> str | None:
    """Return the expression in a generation, by the strict rule; None without one."""
    box = last_boxed(closed(text, "answer") or "")
    return None if box is None else _with_signs(box).strip()


def _with_signs(text: str) -> str:
    for latex, sign in SIGNS.items():
        text = text.replace(latex, sign)
    return text


def left_of_number(text: str) -> str:
    """Return the left side of the first `expression = number`; the text itself without one."""
    parts = text.split("=")
    for left, right in itertools.pairwise(parts):
        expression = left[len(left.rstrip(LEFT)) :]
        if expression and right[:1] and right[0] in RIGHT:
            return expression.strip()
    return text


BINDS = {"+": 0, "-": 0, "*": 1, "/": 1}  # how tightly an operator binds
OPERATORS = "".join(BINDS)


@dataclass(frozen=True)
class Term:
    """A whole number with the expression that gives it."""

    value: int  # the number
    text: str  # the expression, with as few brackets as it needs
    operator: str | None = None  # the last operation; None for a number as given
    steps: tuple[str, ...] = ()  # the operations, such as `3+5=8`, in the order of computing


def given(number: int) -> Term:
    """Return a number as it is given."""
    return Term(number, str(number))


def _joined(left: Term, operator: str, right: Term) -> Term | None:
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
    for sign in operators:
        for i, left in enumerate(pool):
            for j, right in enumerate(pool):
                is_swapped = sign in "+*" and (right.value, j) > (left.value, i)
                if i == j or is_swapped:  # sums and products begin with the larger number
                    continue
                if term := _joined(left, sign, right):
                    rest = [p for k, p in enumerate(pool) if k not in (i, j)]
                    yield from terms([*rest, term], operators)


def solve(numbers: Sequence[int], target: int, operators: str = OPERATORS) -> Term | None:
    """Return the first term that reaches the target; None if there is none.

    The search takes about a millisecond for three numbers, and seconds for six.
    """
    pool = [given(number) for number in sorted(numbers, reverse=True)]
    return next((term for term in terms(pool, operators) if term.value == target), None)
