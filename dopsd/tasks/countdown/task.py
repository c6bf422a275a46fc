r"""Countdown: an arithmetic expression that uses each of the given numbers once and equals the
target.

published: the last \boxed{}, the <answer> tag if that box stays open, else the whole text; LaTeX
operators as signs; what stands left of `= number`; `**` and `//` pass. strict: a \boxed{} in a
closed <answer> with + - * / and brackets alone.
"""

from __future__ import annotations

import itertools
import random
import re
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.core.rng import key_from
from dopsd.tasks.common.answers import BOX, closed, last_boxed, score_by_rule
from dopsd.tasks.common.rows import RowTask, new_problem
from dopsd.tasks.countdown.arithmetic import ALL, PLAIN, numbers, value

if TYPE_CHECKING:
    from collections.abc import Hashable

    from dopsd.core.types import Problem, Score
    from dopsd.tasks.common.sources import Row
    from dopsd.tasks.countdown.arithmetic import Operations
    from dopsd.tasks.countdown.config import CountdownConfig

SIGNS = {"\\div": "/", "\\times": "*", "\\cdot": "*"}
LEFT = "0123456789+-*/() "
RIGHT = "0123456789. "
TOLERANCE = 1e-5
MIN_OPERANDS = 2
TOP = 100  # generated numbers and targets are 1 to TOP, as in the published test rows
DRAWS = 1000  # tries a generated problem, before there are held to be no more


def extract(text: str) -> str:
    """The expression in the published scorer's order."""
    box = last_boxed(text)
    answer = closed(text, "answer") if box is None and BOX in text else None
    expression = box if box is not None else answer.strip() if answer is not None else text
    return left_of_number(_with_signs(expression))


def extract_strict(text: str) -> str | None:
    box = last_boxed(closed(text, "answer") or "")
    return None if box is None else _with_signs(box).strip()


def _with_signs(text: str) -> str:
    for latex, sign in SIGNS.items():
        text = text.replace(latex, sign)
    return text


def left_of_number(text: str) -> str:
    """The left side of the first `expression = number`; the text itself without one."""
    parts = text.split("=")
    for left, right in itertools.pairwise(parts):
        expression = left[len(left.rstrip(LEFT)) :]
        if expression and right[:1] and right[0] in RIGHT:
            return expression.strip()
    return text


def prompt_of(operands: list[int], target: int) -> str:
    return f"Numbers: {operands}\nTarget: {target}"


def problem_from(operands: list[int], target: int) -> Problem:
    """Its answer is the target: any expression that equals it will do."""
    return new_problem(
        "countdown", prompt_of(operands, target), str(target), numbers=operands, target=target
    )


def whole(value: object) -> int | None:
    """A whole number of at most nine digits, written or as it is; None if it is something else."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        return int(value)
    return value if type(value) is int and abs(value) < 10**9 else None


def given_numbers(value: object) -> list[int] | None:
    """Two or more numbers, from a list or from a text such as "30,100,93" or "[30, 100, 93]"."""
    items = value.strip().strip("[]").split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        return None
    integers = [n for n in map(whole, items) if n is not None and n >= 0]
    return integers if len(integers) == len(items) > 1 else None


def make_problem(count: int, rng: random.Random) -> Problem | None:
    """Numbers joined two by two by random operations, where every value is whole; None if the last
    one is out of range.
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
        """A row {nums or numbers, target} or {input, output}."""
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
                f" in column target or output, found {str(v)[:80]}"
            )
        return problem_from(operands, target)

    def is_wanted(self, problem: Problem) -> bool:
        return len(problem.extra["numbers"]) == self.config.numbers

    def identity(self, problem: Problem) -> Hashable:
        """The same numbers in another order are the same problem."""
        return tuple(sorted(problem.extra["numbers"])), problem.extra["target"]

    def training(self, taken: set[Hashable]) -> list[Problem]:
        """Rows of the train source, or `generate` problems and those that validation takes from
        them.
        """
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
            f"data.countdown.generate: only {len(problems)} distinct problems were found, {count}"
            " were asked for"
        )

    def fault(self, problem: Problem) -> str | None:
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
        """Numbers and, last, the target: `49 55 53 51`, or a prompt as in the data."""
        *operands, target = [int(n) for n in re.findall(r"[0-9]{1,9}", text)] or [0]
        if len(operands) < MIN_OPERANDS:
            raise DopsdError(
                f"problem {text!r}: expected two or more numbers and, last, the target, such as `49"
                " 55 53 51`"
            )
        return problem_from(operands, target)

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Ground truth is [numbers, target]."""
        match ground_truth:
            case [pool, goal]:
                operands, target = given_numbers(pool), whole(goal)
            case _:
                operands, target = None, None
        if operands is None or target is None:
            raise DopsdError(
                f"expected [numbers, target] as ground_truth, found {str(ground_truth)[:80]}"
            )
        return problem_from(operands, target)

    def ground_truth(self, problem: Problem) -> object:
        return [problem.extra["numbers"], problem.extra["target"]]

    def verify(self, problem: Problem, text: str) -> Score:
        published, strict = extract(text), extract_strict(text)
        pairs = (
            (published, _score(problem, published, ALL)),
            (
                strict,
                (
                    _score(problem, strict, PLAIN)
                    if strict is not None and "." not in strict  # 4.5 is no use of 4 and 5
                    else 0.0
                ),
            ),
        )
        return score_by_rule(self.config.scoring, *pairs)

    def reward(self, problem: Problem, text: str) -> float:
        """For RLVR, as d1 has it: 1 for a right expression, 0.1 for any other closed answer, else
        0.
        """
        if self.verify(problem, text).correct:
            return 1.0
        return 0.1 if closed(text, "answer") is not None else 0.0


def _score(problem: Problem, text: str, operations: Operations) -> float:
    if sorted(numbers(text)) != sorted(problem.extra["numbers"]):
        return 0.0
    result = value(text, operations)
    return float(result is not None and abs(result - problem.extra["target"]) < TOLERANCE)


def make(config: CountdownConfig) -> Countdown:
    return Countdown(config)
