r"""Which expression of a generation is its answer, by two rules.

published: the last \boxed{}, but first what follows a `\boxed ` with a space; the <answer> tag if
the box stays open, else the whole text; LaTeX operators count as signs; the left side of `= number`
counts. strict: a \boxed{} in a closed <answer>.
"""

from __future__ import annotations

import itertools

from dopsd.tasks.common.answers import closed, last_boxed, published_box

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
