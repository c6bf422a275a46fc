"""Verifier `number`: the same number, within a tolerance."""

from __future__ import annotations

from decimal import Context, Decimal, DecimalException
from typing import TYPE_CHECKING

from dopsd.tasks.common.numbers import numbers, only_number

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.tasks.custom.verifiers.config import NumberConfig

EXACTLY = Context(prec=200)  # digits of a difference


class Number:
    """Right if the answer is the same number; decimals are compared exactly."""

    def __init__(self, config: NumberConfig) -> None:
        self.absolute = Decimal(str(config.tolerance))
        self.relative = Decimal(str(config.relative_tolerance))
        self.which = {"first": 0, "last": -1}[config.which]
        self.decimal = config.decimal

    def value(self, text: str) -> Decimal | None:
        """Return the number that counts in a text; None without one."""
        values = numbers(text, self.decimal)
        return values[self.which] if values else None

    def fault(self, answer: str) -> str | None:
        """Require one number and nothing else."""
        if only_number(answer, self.decimal) is not None:
            return None
        example = {".": "-1,000.5", ",": "-1.000,5"}[self.decimal]
        return f"one number alone, with the decimal mark {self.decimal!r} as in {example},"

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for the same number, else 0."""
        found, gold = self.value(answer), only_number(problem.answer, self.decimal)
        if found is None or gold is None:
            return 0.0
        try:
            difference = abs(EXACTLY.subtract(found, gold))
            allowed = max(self.absolute, EXACTLY.multiply(self.relative, abs(gold)))
        except DecimalException:
            return 0.0
        return float(difference <= allowed)
