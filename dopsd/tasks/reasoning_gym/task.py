"""Tasks of reasoning-gym: a process makes the problems, and another one scores answers.

The library is never imported here: it may evaluate an answer as Python, and a text may keep its
scorer busy without end.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from typing import Any

from dopsd.core.errors import Code, unknown
from dopsd.core.extras import require
from dopsd.core.types import Problem
from dopsd.tasks.common.generated import GeneratedTask, Made
from dopsd.tasks.common.program import CommandVerifier, Failed, Limits, Program
from dopsd.tasks.common.sandbox import missing_sandbox, sandbox
from dopsd.tasks.reasoning_gym import server
from dopsd.tasks.reasoning_gym.config import EVALUATED, ReasoningGymConfig

PACKAGE = "reasoning_gym"
MAKING = Limits(120.0, 4096, 120.0)  # of a problem; some take seconds
SCORING = Limits(10.0, 2048, 120.0)
NO_ANSWER = "(the library has none)"
# texts and sets in the order that every process has, and no thread for each processor
REPEATABLE = ["env", "PYTHONHASHSEED=0", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"]


class Library:
    """A dataset of reasoning-gym with its settings."""

    def __init__(self, key: str, config: ReasoningGymConfig) -> None:
        require(key, PACKAGE)
        if config.version != (found := version(PACKAGE)):
            raise Code.PACKAGE_MISSING.error(
                f"{key}.version: {config.version}, but reasoning-gym {found} is installed, which"
                f" makes other problems; pip install reasoning-gym=={config.version}, or set"
                f" {key}.version to {found} and prepare the task again"
            )
        self.evaluates = bool(config.datasets & EVALUATED)
        if self.evaluates and (fault := missing_sandbox()):
            raise Code.PACKAGE_MISSING.error(
                f"{key}: the library evaluates answers to {config.dataset} as Python, which is"
                f" done in bubblewrap alone, and {fault}; or choose another dataset"
            )
        self.key, self.config = key, config
        self.settings = {"dataset": config.dataset, "config": json.dumps(config.config)}
        self.identity = f"{PACKAGE} {found} {json.dumps(self.settings)}"

    def generate(self, seed: int, count: int) -> Iterator[Made]:
        """Make so many problems, the same ones for the same seed."""
        for index in range(count):
            made = self._made(self.settings | {"seed": seed, "size": count, "index": index})
            answer = made["answer"] or NO_ANSWER
            if made["answer"] or not self.config.has_solutions:  # `ab` has blank answers
                yield Made(made["question"], answer, made["solution"], made["row"])

    def _made(self, request: dict[str, Any]) -> dict[str, Any]:
        name = self.config.dataset
        try:
            answer = _program(MAKING).ask(request, name, request | {"response": ""})
        except Failed as error:
            raise Code.VERIFIER_PROGRAM.error(
                f"{self.key}: {name}: {error}; change {self.key}.config, or choose another dataset"
            ) from error
        if fault := answer.get("error"):
            if "not registered" in fault:
                names = [row["dataset"] for row in listed()]
                fault = unknown(name, names, "what `dopsd task list reasoning_gym` prints")
                raise Code.WRONG_VALUE.error(f"{self.key}.dataset: {fault}")
            raise Code.WRONG_VALUE.error(f"{self.key}: {name}: {fault}")
        return answer

    def score(self, problem: Problem, answer: str) -> float:
        """Return the library's score of an answer."""
        program = _program(SCORING, self.evaluates)
        return CommandVerifier(self.key, program).score(problem, answer)


@cache
def _program(limits: Limits, evaluates: bool = False) -> Program:
    """Return the process of all tasks that makes or scores; in the sandbox if it evaluates."""
    words, env = [*REPEATABLE, sys.executable, server.__file__, "0", "compares"], None
    if evaluates:
        env = dict[str, str]()  # bubblewrap's own would be in its /proc/1
        user = 100_000 + secrets.randbelow(2**30) if os.geteuid() == 0 else 0
        spec = find_spec(PACKAGE)
        shown = sandbox(sys.prefix, str(Path(str(spec and spec.origin)).parents[1]))
        code = [sys.executable, "-P", "-c", getsource(server)]
        words = [*shown, "--", *REPEATABLE, *code, str(user), "evaluates"]
    return Program(PACKAGE, words, limits, env)


def listed() -> list[dict[str, Any]]:
    """Return every dataset of the library with an example, and the seconds of one problem."""
    require("task list", PACKAGE)
    rows: list[dict[str, Any]] = _program(MAKING).ask({}, PACKAGE, {"response": ""})["rows"]
    return rows


def make(config: ReasoningGymConfig, task: str) -> GeneratedTask:
    """Return the task of this name with its settings."""
    return GeneratedTask(task, config, Library(f"data.{task}", config))
