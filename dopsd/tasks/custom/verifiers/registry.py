"""Make a verifier from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.tasks.custom.verifiers.command import command, mathematics
from dopsd.tasks.custom.verifiers.json_schema import JsonSchema
from dopsd.tasks.custom.verifiers.number import Number
from dopsd.tasks.custom.verifiers.texts import Choice, Exact, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.tasks.custom.verifiers.base import Verifier
    from dopsd.tasks.custom.verifiers.config import VerifierConfig

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
