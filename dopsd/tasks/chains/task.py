"""Chains: apply operations to a number, one after the other, modulo 5; right or wrong.

`3 *4 -1 +2` gives 2, 1, 3: the answer 3 does not contain the steps before it. published: what
follows <answer>, up to </answer> or the end. strict: one digit in a closed <answer>.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.answers import closed, score_by_rule
from dopsd.tasks.common.asking import AskingTask, no_longer_than
from dopsd.tasks.common.rows import draw, split_of, stream

if TYPE_CHECKING:
    from dopsd.tasks.chains.config import ChainsConfig

INSTRUCTIONS = """Apply the operations to the first number, one after the other, from left to right. After each, keep the remainder
of the division by {modulus} (3*4 gives {product} and 1-3 gives {difference}). Think inside <reasoning></reasoning>, one step
after the other, then give the last result alone inside <answer></answer>."""  # noqa: E501
CHAIN = re.compile(r"([0-9])(( [-+*][0-9])+)")


def applied(value: int, operator: str, operand: int, modulus: int) -> int:
    """Return the remainder of an operation's result, such as 3 for 1 - 3 modulo 5."""
    results = {"+": value + operand, "-": value - operand, "*": value * operand}
    return results[operator] % modulus


def steps(chain: str, modulus: int, is_careful: bool = True) -> list[str]:
    """Return the steps of a chain, such as `3*4=2`, `2-1=1`.

    Args:
        chain: the chain, such as `3 *4 -1`.
        is_careful: False: with the sum in place of every product.
    """
    first, *operations = chain.split()
    value, lines = int(first), []
    for operation in operations:
        operator, operand = operation[0], operation[1]
        used = "+" if operator == "*" and not is_careful else operator
        result = applied(value, used, int(operand), modulus)
        lines.append(f"{value}{operator}{operand}={result}")
        value = result
    return lines


def fits(chain: str, modulus: int) -> bool:
    """Return whether a text is a chain of numbers below the modulus."""
    return bool(CHAIN.fullmatch(chain)) and all(
        int(n) < modulus for n in re.findall("[0-9]", chain)
    )


def make_chain(operations: int, modulus: int, rng: random.Random) -> str:
    """Return a random chain with at least one product in it."""
    while True:
        parts = [f"{rng.choice('+-*')}{rng.randint(1, modulus - 1)}" for _ in range(operations)]
        if any(part[0] == "*" for part in parts):
            return " ".join([str(rng.randint(0, modulus - 1)), *parts])


def extract(text: str) -> str | None:
    """Return the answer in a generation, by the published rule: what follows the first <answer>."""
    _, opening, rest = text.partition("<answer>")
    return rest.partition("</answer>")[0].partition("<|")[0].strip() if opening else None


def extract_strict(text: str) -> str | None:
    """Return the digit in a closed <answer>, or None."""
    answer = (closed(text, "answer") or "").strip()
    return answer if re.fullmatch("[0-9]", answer) else None


class Chains(AskingTask):
    """The task of chains: right or wrong, with an answer that holds only the last step's result."""

    name = "chains"
    instructions = INSTRUCTIONS
    config: ChainsConfig

    def __init__(self, config: ChainsConfig) -> None:
        super().__init__(config)
        if not self.has_own_prompt:
            self.instructions = INSTRUCTIONS.format(
                modulus=config.modulus,
                product=12 % config.modulus,
                difference=-2 % config.modulus,
            )

    def build(self) -> dict[str, list[Problem]]:
        """Return train, validation and test; no chain is in two of them."""
        c = self.config
        sizes = {"train": c.train, "validation": c.validation, "test": c.test}
        splits = {split: self.generated(split, count) for split, count in sizes.items()}
        return no_longer_than(c.limit, splits)

    def generated(self, split: str, count: int) -> list[Problem]:
        """Return `count` distinct problems of a split."""
        c = self.config

        def make(rng: random.Random) -> Problem | None:
            chain = make_chain(c.operations, c.modulus, rng)
            is_here = split_of(self.name, chain, c.seed) == split
            return self.problem_of(chain) if is_here else None

        too_few = (
            f"data.chains.{split}: found only {{found}} distinct chains of {{count}}; ask for"
            " fewer, or raise operations or modulus"
        )
        return draw(stream(self.name, split, c.seed), count, make, lambda p: p.prompt, too_few)

    def problem_of(self, chain: str) -> Problem:
        """Return the problem of a chain."""
        answer = steps(chain, self.config.modulus)[-1][-1]
        return Problem(f"chains-{chain.replace(' ', '')}", chain, answer)

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        modulus, chain = self.config.modulus, problem.prompt
        if not fits(chain, modulus):
            return f"numbers below {modulus} and operations as in `3 *4 -1`, found {chain[:40]!r}"
        right = self.problem_of(chain).answer
        return None if problem.answer == right else f"the answer {right}, found {problem.answer!r}"

    def ask(self, text: str) -> Problem:
        """Return the problem of a chain that a person typed."""
        if not fits(text.strip(), self.config.modulus):
            raise Code.PROBLEM_TEXT.error(
                f"problem {text!r}: expected numbers below {self.config.modulus} and operations,"
                " such as `3 *4 -1 +2`"
            )
        return self.problem_of(text.strip())

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a generation on file."""
        problem = Problem("generation", question, str(ground_truth))
        if expected := self.fault(problem):
            raise Code.GENERATIONS_ROW.error(f"expected {expected}")
        return self.problem_of(question)

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and 1 if it is right, else 0."""
        found = (extract(text), extract_strict(text))
        published, strict = ((answer, float(answer == problem.answer)) for answer in found)
        return score_by_rule(self.config.scoring, published, strict)

    def answer_text(self, problem: Problem) -> str:
        """Return the gold answer as it stands in <answer>."""
        return problem.answer

    def worked_solution(self, problem: Problem, is_careful: bool) -> str:
        """Return a generation that applies every operation, or adds where it should multiply."""
        lines = steps(problem.prompt, self.config.modulus, is_careful)
        return f"<reasoning>{','.join(lines)}</reasoning><answer>{lines[-1][-1]}</answer>"


def make(config: ChainsConfig) -> Chains:
    """Return the task with its settings."""
    return Chains(config)
