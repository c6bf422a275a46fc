r"""Countdown: an expression that uses each given number once and equals the target.

published: the last \boxed{}, but first what follows a `\boxed ` with a space; the <answer> tag if
the box stays open, else the whole text; LaTeX
operators count as signs; the left side of `= number` counts; `**` and `//` are allowed. strict: a
\boxed{} in a closed <answer>, with + - * / and brackets only.
"""

from __future__ import annotations

import itertools
import random
import re
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.keys import key_from
from dopsd.tasks.common.answers import closed, last_boxed, published_box, score_by_rule
from dopsd.tasks.common.rows import RowTask, new_problem
from dopsd.tasks.countdown.arithmetic import ALL, PLAIN, numbers, value

if TYPE_CHECKING:
    from collections.abc import Hashable

    from dopsd.core.types import Problem, Score
    from dopsd.tasks.common.sources import Row
    from dopsd.tasks.countdown.arithmetic import Operations
    from dopsd.tasks.countdown.config import CountdownConfig

SIGNS = {"\\div": "/", "\\times": "*", "\\cdot": "*"}
LEFT = "0123456789+-*/() "  # characters of an expression before `=`
RIGHT = "0123456789. "  # first characters of a number after `=`
TOLERANCE = 1e-5  # between an expression's value and the target
MIN_OPERANDS = 2
TOP = 100  # generated numbers and targets are 1 to TOP, as in the published test rows
DRAWS = 1000  # draws per generated problem before giving up


def extract(text: str) -> str:
    """Return the expression in a generation, by the published rule."""
    box = published_box(text)
    answer = closed(text, "answer") if box is None else None
    expression = box if box is not None else answer.strip() if answer is not None else text
    return left_of_number(_with_signs(expression))


def extract_strict(text: str) -> str | None:
    """Return the expression in a generation, by the strict rule; None without one."""
    box = last_boxed(closed(text, "answer") or "")
    return None if box is None else _with_signs(box).strip()


def _with_signs(text: str) -> str:
    for latex, sign in SIGNS.items():
        text = text.replace(latex, sign)
    return text


def left_of_number(text: str) -> str:
    """Return the left side of the first `expression = number`; the text itself without one."""
    parts = text.split("=")
    for left, right in itertools.pairwise(parts):
        expression = left[len(left.rstrip(LEFT)) :]
        if expression and right[:1] and right[0] in RIGHT:
            return expression.strip()
    return text


def prompt_of(operands: list[int], target: int) -> str:
    """Return the prompt of a problem."""
    return f"Numbers: {operands}\nTarget: {target}"


def problem_from(operands: list[int], target: int) -> Problem:
    """Return the problem; its answer is the target, which many expressions reach."""
    return new_problem(
        "countdown", prompt_of(operands, target), str(target), numbers=operands, target=target
    )


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


def make_problem(count: int, rng: random.Random) -> Problem | None:
    """Join `count` random numbers in pairs by random operations with integer results.

    Returns None if the result is not in 1 to TOP.
    """
    operands = [rng.randint(1, TOP) for _ in range(count)]
    remaining = list(operands)
    while len(remaining) > 1:
        rng.shuffle(remaining)
        a, b = remaining.pop(), remaining.pop()
        results = [a + b, a - b, a * b] + ([a // b] if b and a % b == 0 else [])
        remaining.append(rng.choice(results))
    return problem_from(operands, remaining[0]) if 1 <= remaining[0] <= TOP else None


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
        operands = given_numbers(
            next(
                (v[name] for name in ("nums", "numbers", "input") if v.get(name) is not None), None
            )
        )
        target = whole(
            next((v[name] for name in ("target", "output") if v.get(name) is not None), None)
        )
        if operands is None or target is None:
            raise DopsdError(
                f"{row.place}: expected numbers in column nums, numbers or input and a whole number"
                f" in column target or output, found {str(v)[:80]}",
                code=Code.SOURCE_ROW,
            )
        return problem_from(operands, target)

    def is_wanted(self, problem: Problem) -> bool:
        """Return whether the problem has as many numbers as `data.countdown.numbers` asks for."""
        return len(problem.extra["numbers"]) == self.config.numbers

    def identity(self, problem: Problem) -> Hashable:
        """Return a key that does not depend on the order of the numbers."""
        return tuple(sorted(problem.extra["numbers"])), problem.extra["target"]

    def training(self, taken: set[Hashable]) -> list[Problem]:
        """Return rows of the train source, or generated problems, for training and validation."""
        c = self.config
        if not c.generate:
            return super().training(taken)
        rng = random.Random(key_from("countdown", c.numbers, c.seed))
        count = c.generate + c.validation
        problems: dict[Hashable, Problem] = {}
        for _ in range(DRAWS * count):
            problem = make_problem(c.numbers, rng)
            if problem and self.identity(problem) not in taken:
                problems.setdefault(self.identity(problem), problem)
            if len(problems) == count:
                return list(problems.values())
        raise DopsdError(
            f"data.countdown.generate: found only {len(problems)} distinct problems of {count}; ask"
            " for fewer, or raise numbers",
            code=Code.TOO_FEW_PROBLEMS,
        )

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
        """Return the problem of a text: numbers and, last, the target, such as `49 55 53 51`.

        Raises:
            DopsdError: if the text has fewer than three numbers.
        """
        *operands, target = [int(n) for n in re.findall(r"[0-9]{1,9}", text)] or [0]
        if len(operands) < MIN_OPERANDS:
            raise DopsdError(
                f"problem {text!r}: expected two or more numbers and, last, the target, such as `49"
                " 55 53 51`",
                code=Code.PROBLEM_TEXT,
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
            raise DopsdError(f"expected {expected}", code=Code.GENERATIONS_ROW)
        return problem_from(operands, target)

    def ground_truth(self, problem: Problem) -> object:
        """Return [numbers, target]."""
        return [problem.extra["numbers"], problem.extra["target"]]

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the expression in a generation, and 1 if it is correct, else 0."""
        published, strict = extract(text), extract_strict(text)
        pairs = (
            (published, _score(problem, published, ALL)),
            (
                strict,
                (
                    _score(problem, strict, PLAIN)
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


def _score(problem: Problem, text: str, operations: Operations) -> float:
    if sorted(numbers(text)) != sorted(problem.extra["numbers"]):
        return 0.0
    result = value(text, operations)
    return float(result is not None and abs(result - problem.extra["target"]) < TOLERANCE)


def make(config: CountdownConfig) -> Countdown:
    """Return the task with its settings."""
    return Countdown(config)
