"""Verifier `number`: the same number, within a tolerance."""

from __future__ import annotations

import re
from decimal import Context, Decimal, DecimalException
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.tasks.custom.verifiers.config import NumberConfig

NUMBER = re.compile(
    r"(?<![\w.,])[-+]?[$€£]?"
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!,?\d)|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?",
    re.ASCII,
)
SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " "})
LONGEST = 60  # characters of a number; a longer run of digits is noise
EXACTLY = Context(prec=200)  # digits of a difference


def numbers(text: str) -> list[Decimal]:
    """Return the numbers in a text, in order; commas and currency signs inside them are dropped."""
    matches = (match[0] for match in NUMBER.finditer(text.translate(SIGNS)))
    return [Decimal(re.sub("[,$€£]", "", item)) for item in matches if len(item) <= LONGEST]


class Number:
    """Right if the answer is the same number; decimals are compared exactly."""

    def __init__(self, config: NumberConfig) -> None:
        self.absolute = Decimal(str(config.tolerance))
        self.relative = Decimal(str(config.relative_tolerance))
        self.which = {"first": 0, "last": -1}[config.which]

    def value(self, text: str) -> Decimal | None:
        """Return the number that counts in a text; None without one."""
        values = numbers(text)
        return values[self.which] if values else None

    def fault(self, answer: str) -> str | None:
        """Require exactly one number."""
        return None if len(numbers(answer)) == 1 else "one number"

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for the same number, else 0."""
        value, gold = self.value(answer), self.value(problem.answer)
        if value is None or gold is None:
            return 0.0
        try:
            difference = abs(EXACTLY.subtract(value, gold))
            allowed = max(self.absolute, EXACTLY.multiply(self.relative, abs(gold)))
        except DecimalException:
            return 0.0
        return float(difference <= allowed)
