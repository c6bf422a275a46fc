"""Evaluate arithmetic expressions of a model by walking the syntax tree, with bounds; no eval()."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Operations = dict[type[ast.operator], Callable[[float, float], complex]]

LONGEST = 200  # characters; six numbers and their operators need fewer than 60
DEEPEST = 30  # nested operations and brackets
LARGEST = 1e15  # magnitude of any intermediate value
HIGHEST_POWER = 64  # magnitude of any exponent
PLAIN: Operations = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def power(base: float, exponent: float) -> complex:
    """Return base ** exponent.

    Raises:
        ValueError: if the exponent exceeds HIGHEST_POWER.
    """
    if abs(exponent) > HIGHEST_POWER:
        raise ValueError(f"an exponent over {HIGHEST_POWER}")
    result: complex = base**exponent
    return result


ALL = PLAIN | {ast.Pow: power, ast.FloorDiv: operator.floordiv}


def numbers(text: str) -> list[int]:
    """Return the runs of digits as numbers, in order; none for a text over LONGEST characters."""
    return [int(run) for run in re.findall("[0-9]+", text)] if len(text) <= LONGEST else []


def value(text: str, operations: Operations = PLAIN) -> float | None:
    """Return the value of an arithmetic expression, or None if it has no bounded value.

    Args:
        text: the expression; unary signs and brackets are allowed.
        operations: the binary operations that are allowed.
    """
    if len(text) > LONGEST or not re.fullmatch(r"[0-9+\-*/().\s]+", text, re.ASCII):
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, operations, DEEPEST)
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr, operations: Operations, depth: int) -> float:
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
    if not isinstance(result, int | float) or not abs(result) <= LARGEST:  # a power can be complex
        raise ValueError(f"no number up to {LARGEST:g}")
    return result
