"""Countdown: an expression that uses each given number once and equals the target.

published: `**` and `//` are allowed. strict: + - * / and brackets only, without rounding.
"""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.answers import closed, score_by_rule
from dopsd.tasks.common.asking import no_longer_than
from dopsd.tasks.common.rows import RowTask, draw, named_apart, split_of, stream
from dopsd.tasks.common.sources import Row
from dopsd.tasks.countdown.arithmetic import (
    ALL,
    PLAIN,
    extract,
    extract_strict,
    habit,
    make_problem,
    numbers_of,
    problem_from,
    prompt_of,
    solve,
    value,
    working,
)

if TYPE_CHECKING:
    from dopsd.tasks.countdown.arithmetic import Operations
    from dopsd.tasks.countdown.config import CountdownConfig

TOLERANCE = 1e-5  # of the published scorer, between an expression's value and the target
MIN_OPERANDS = 2


def whole(value: object) -> int | None:
    """Return an integer of at most nine digits, from an integer or a text; None otherwise."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        return int(value)
    return value if type(value) is int and abs(value) < 10**9 else None


def given_numbers(value: object) -> list[int] | None:
    """Return two or more numbers from a list or a text such as "[30, 100, 93]"; None otherwise."""
    items = value.strip().strip("[]").split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        return None
    integers = [n for n in map(whole, items) if n is not None and n >= 0]
    return integers if len(integers) == len(items) > 1 else None


class Countdown(RowTask):
    """The task Countdown: right or wrong, without partial scores."""

    name = "countdown"
    config: CountdownConfig
    instructions = r"""Reach the target with the numbers below: combine them by +, -, * and / (brackets may be used).
Use every number exactly once, and no other number. Think inside <reasoning></reasoning>, then write the expression alone,
without an equals sign and without the target, in \boxed{} inside <answer></answer>:
<reasoning>
your thoughts
</reasoning>
<answer>
\boxed{the expression}
</answer>"""  # noqa: E501

    def problem_of(self, row: Row) -> Problem:
        """Return the problem of a row {nums or numbers, target} or {input, output}."""
        v = row.values
        given = [v[name] for name in ("nums", "numbers", "input") if v.get(name) is not None]
        operands = given_numbers(given[0]) if given else None
        target = whole(
            next((v[name] for name in ("target", "output") if v.get(name) is not None), None)
        )
        if operands is None or target is None:
            raise Code.SOURCE_ROW.error(
                f"{row.place}: expected whole numbers in column nums, numbers or input, and one"
                f" in column target or output, found {str(v)[:80]}"
            )
        both = [given_numbers(v[name]) for name in ("nums", "numbers") if v.get(name) is not None]
        if any(numbers != operands for numbers in both):
            raise Code.SOURCE_ROW.error(
                f"{row.place}: columns nums and numbers differ; remove one: {str(v)[:80]}"
            )
        return problem_from(operands, target)

    @property
    def wanted(self) -> str:
        """What `is_wanted` asks for."""
        return f"problem of {self.config.numbers} numbers (data.countdown.numbers)"

    def is_wanted(self, problem: Problem) -> bool:
        """Return whether the problem has as many numbers as `data.countdown.numbers` asks for."""
        return len(problem.extra["numbers"]) == self.config.numbers

    def identity(self, problem: Problem) -> Hashable:
        """Return a key that does not depend on the order of the numbers."""
        return tuple(sorted(problem.extra["numbers"])), problem.extra["target"]

    def build(self) -> dict[str, list[Problem]]:
        """Return the problems of train, validation and test.

        Generated splits share no set of numbers, and each draws from a stream of its own.
        """
        c = self.config
        if not c.generate:
            return super().build()
        test = (
            named_apart(self.read("test"))
            if c.test
            else self.generated("test", c.generate_test, [])
        )
        splits = {
            "train": self.generated("train", c.generate, test),
            "validation": self.generated("validation", c.validation, test),
            "test": test,
        }
        return no_longer_than(c.limit, splits)

    def generated(self, split: str, count: int, test: Sequence[Problem]) -> list[Problem]:
        """Return `count` distinct problems of a split, over none of the number sets of `test`."""
        c = self.config
        taken = {tuple(sorted(p.extra["numbers"])) for p in test}

        def make(rng: random.Random) -> Problem | None:
            problem = make_problem(c.numbers, c.largest, c.operators, rng)
            numbers = tuple(sorted(problem.extra["numbers"])) if problem else ()
            is_here = numbers not in taken and split_of(self.name, str(numbers), c.seed) == split
            return problem if is_here else None

        key = {"train": "generate", "test": "generate_test"}.get(split, split)
        too_few = (
            f"data.countdown.{key}: found only {{found}} distinct problems of {{count}}; ask for"
            " fewer, or raise numbers or largest"
        )
        # training may ask in any order, which the prompt tells apart
        identity = (lambda p: p.prompt) if split == "train" else self.identity
        return draw(stream(self.name, split, c.seed), count, make, identity, too_few)

    def worked_solution(self, problem: Problem, is_careful: bool) -> str:
        """Return a generation that solves the problem, or follows a habit.

        Args:
            is_careful: True: the first solution of the solver; False: what `habit` does.
        """
        operands, target = problem.extra["numbers"], problem.extra["target"]
        if not is_careful:
            return working(habit(operands, target))
        if term := solve(operands, target, self.config.operators):
            return working(term)
        raise Code.NO_SOLUTIONS.error(
            f"countdown: problem {problem.id} has no solution in whole numbers; leave it out of"
            " the data"
        )

    def solver_answer(self, problem: Problem) -> str | None:
        """Return the solver's expression, as it stands in a box; None without a solution."""
        term = solve(problem.extra["numbers"], problem.extra["target"], self.config.operators)
        return term.text if term else None

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        operands, target = (
            given_numbers(problem.extra.get("numbers")),
            whole(problem.extra.get("target")),
        )
        if operands is None or target is None:
            return f"numbers and a target in extra, found {str(problem.extra)[:80]}"
        if problem.prompt != prompt_of(operands, target):
            return f"the prompt {prompt_of(operands, target)!r}, found {problem.prompt[:80]!r}"
        return None

    def ask(self, text: str) -> Problem:
        """Return the problem of a text: numbers and, last, the target, such as `49 55 53 51`."""
        *operands, target = [int(n) for n in re.findall(r"[0-9]{1,9}", text)] or [0]
        if len(operands) < MIN_OPERANDS:
            raise Code.PROBLEM_TEXT.error(
                f"problem {text!r}: expected two or more numbers and, last, the target, such as `49"
                " 55 53 51`"
            )
        return problem_from(operands, target)

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a generation on file, whose ground truth is [numbers, target]."""
        match ground_truth:
            case [pool, goal]:
                operands, target = given_numbers(pool), whole(goal)
            case _:
                operands, target = None, None
        if operands is None or target is None:
            expected = f"[numbers, target] as ground_truth, found {str(ground_truth)[:80]}"
            raise Code.GENERATIONS_ROW.error(f"expected {expected}")
        return problem_from(operands, target)

    def ground_truth(self, problem: Problem) -> object:
        """Return [numbers, target]."""
        return [problem.extra["numbers"], problem.extra["target"]]

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the expression in a generation, and 1 if it is correct, else 0."""
        published, strict = extract(text), extract_strict(text)
        pairs = (
            (published, _score(problem, published, ALL, TOLERANCE)),
            (
                strict,
                (
                    _score(problem, strict, PLAIN, 0)
                    if strict is not None and "." not in strict  # 4.5 does not use 4 and 5
                    else 0.0
                ),
            ),
        )
        return score_by_rule(self.config.scoring, *pairs)

    def reward(self, problem: Problem, text: str) -> float:
        """Return d1's reward for RLVR: 1 if correct, 0.1 for another closed <answer>, else 0."""
        if self.verify(problem, text).correct:
            return 1.0
        return 0.1 if closed(text, "answer") is not None else 0.0


def _score(problem: Problem, text: str, operations: Operations, tolerance: float) -> float:
    if sorted(numbers_of(text)) != sorted(problem.extra["numbers"]):
        return 0.0
    result = value(text, operations)
    difference = None if result is None else abs(result - problem.extra["target"])
    return float(difference is not None and (difference == 0 or difference < tolerance))


def make(config: CountdownConfig) -> Countdown:
    """Return the task with its settings."""
    return Countdown(config)
