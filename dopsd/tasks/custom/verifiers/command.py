"""Verifiers `command` and `math`: an answer is scored in a process with limits of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dopsd.core.extras import require
from dopsd.tasks.common.program import CommandVerifier, Limits, Program
from dopsd.tasks.custom.verifiers import math_server

if TYPE_CHECKING:
    from dopsd.tasks.custom.verifiers.config import CommandConfig, MathConfig


def verifier_command(key: str, config: CommandConfig) -> CommandVerifier:
    """Return the verifier of a program of the user's own."""
    key = f"{key}.program"
    return CommandVerifier(
        key, Program(key, config.program, Limits(config.seconds, config.memory_mb))
    )


def mathematics(key: str, config: MathConfig) -> CommandVerifier:
    """Return the verifier of mathematical expressions: math-verify in a process of its own.

    The library limits its time by a signal, which reaches neither another thread nor a long
    operation on huge integers; the process' own limits do.
    """
    require(key, "math_verify")
    words = [sys.executable, math_server.__file__, str(config.seconds)]
    limits = Limits(3 * config.seconds, config.memory_mb, 60.0)
    return CommandVerifier(key, Program(key, words, limits), known="1")
