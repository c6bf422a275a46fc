"""The protocol of verifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dopsd.core.types import Problem


class Verifier(Protocol):
    """Scores an answer against a problem's own."""

    def fault(self, answer: str) -> str | None:
        """Return what a row's answer should be; None if it is sound."""

    def score(self, problem: Problem, answer: str) -> float:
        """Return the score of an answer that was found in a generation, from 0 to 1."""
