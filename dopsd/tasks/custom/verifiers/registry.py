"""Make a verifier from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from dopsd.tasks.custom.verifiers.command import command, mathematics
from dopsd.tasks.custom.verifiers.json_schema import JsonSchema
from dopsd.tasks.custom.verifiers.texts import Choice, Exact, Number, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.core.types import Problem
    from dopsd.tasks.custom.verifiers.config import VerifierConfig


class Verifier(Protocol):
    """Scores an answer against a problem's own."""

    def fault(self, answer: str) -> str | None:
        """Return what a row's answer should be; None if it is sound."""

    def score(self, problem: Problem, answer: str) -> float:
        """Return the score of an answer that was found in a generation, from 0 to 1."""


MAKERS: dict[str, Callable[[str, Any], Verifier]] = {
    "exact": lambda _, config: Exact(config),
    "number": lambda _, config: Number(config),
    "choice": lambda _, config: Choice(config),
    "regex": lambda _, config: Pattern(config),
    "math": mathematics,
    "json_schema": JsonSchema,
    "command": command,
}


def make_verifier(key: str, config: VerifierConfig) -> Verifier:
    """Return the verifier of a section.

    Args:
        key: the section's key in params.yaml, for messages.
        config: the section.
    """
    return MAKERS[config.type](key, config)
