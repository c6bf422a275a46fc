"""Verifiers `command` and `math`: an answer is scored in a process with limits of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.extras import require
from dopsd.core.progress import log
from dopsd.tasks.custom.verifiers import math_server
from dopsd.tasks.custom.verifiers.program import Failed, Limits, Program

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.tasks.custom.verifiers.config import CommandConfig, MathConfig

ROW = "row"  # in extra of a problem: the columns that the program gets


class CommandVerifier:
    """Score by a program: it gets a line for each answer, and writes a line with the score."""

    def __init__(self, key: str, program: Program, known: str | None = None) -> None:
        """Keep the program.

        Args:
            known: an answer that it can score in any row against itself; None: the row's answer.
        """
        self.key, self.program, self.known = key, program, known

    def fault(self, answer: str) -> str | None:
        """Accept any answer."""
        return None

    def score(self, problem: Problem, answer: str) -> float:
        """Return the program's score; 0 for an answer that it gives no score in its limits."""
        known = problem.answer if self.known is None else self.known
        requests = (_request(problem, problem.answer, answer), _request(problem, known, known))
        try:
            score: Any = self.program.ask(requests[0], problem.id, requests[1]).get("score")
        except Failed as error:
            log(f"{self.key}: {problem.id}: {error}; this answer scores 0: {answer[:60]!r}")
            return 0.0
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if not is_number or not 0 <= score <= 1:
            raise Code.VERIFIER_PROGRAM.error(
                f"{self.key}: {problem.id}: expected a score from 0 to 1, found"
                f" {str(score)[:40]!r}; fix the program"
            )
        return float(score)


def _request(problem: Problem, answer: str, response: str) -> dict[str, Any]:
    cells = problem.extra.get(ROW, {})
    return {"question": problem.prompt, "answer": answer, "response": response, ROW: cells}


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
