"""Verifier `python_tests`: the answer is a Python program, which must pass the row's tests.

It runs in the sandbox.
"""

from __future__ import annotations

import secrets
from inspect import getsource
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.tasks.common.program import ROW
from dopsd.tasks.common.sandbox import SECRET, missing_sandbox, run_program
from dopsd.tasks.custom.verifiers import program_text
from dopsd.tasks.custom.verifiers.row_tests import code_in

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.tasks.custom.verifiers.config import PythonTestsConfig


class PythonTests:
    """Score 1 if the program runs to the end of its row's tests, else 0."""

    def __init__(self, key: str, config: PythonTestsConfig) -> None:
        """Keep the settings, and try the sandbox."""
        self.key, self.config = key, config
        if fault := missing_sandbox():
            raise Code.PACKAGE_MISSING.error(
                f"{key}: python_tests runs programs in bubblewrap alone, and {fault}; or score by"
                " another verifier"
            )

    def fault(self, answer: str) -> str | None:
        """Accept any answer: whether it is a right program, `dopsd task check` shows."""
        return None

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 if the answer's program passes the row's tests, else 0."""
        cells = problem.extra.get(ROW, {})
        if self.config.tests not in cells:
            raise Code.SOURCE_ROW.error(
                f"{self.key}: {problem.id}: no tests (column {self.config.tests} of its row); score"
                " answers to rows of the task"
            )
        passed = f"passed {secrets.token_hex(16)}".encode()
        before, tests = cells.get(self.config.before, ""), code_in(cells[self.config.tests])
        code = f"{getsource(program_text)}\nrun{(answer, before, tests, SECRET)!r}\n"
        limits = self.config.seconds, self.config.memory_mb
        output, status, fault = run_program(code, *limits, passed)
        if fault:
            raise Code.VERIFIER_PROGRAM.error(
                f"{self.key}: {problem.id}: the sandbox did not start ({fault}); run the same"
                " command again",
                1,
            )
        return float(status == 0 and passed in output)
