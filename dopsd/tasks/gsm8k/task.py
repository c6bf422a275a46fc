r"""GSM8K: grade-school mathematics problems whose answer is one number (Cobbe et al. 2021).

published: the first \boxed{} that holds a number, else the <answer> tag. strict: a \boxed{} in a
closed <answer>, compared as an exact decimal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal, DecimalException
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.answers import (
    BOX,
    UNKNOWN,
    boxed_to_brace,
    closed,
    laid_out,
    last_boxed,
    score_by_rule,
)
from dopsd.tasks.common.json_files import Figure
from dopsd.tasks.common.numbers import numbers, only_number
from dopsd.tasks.common.rows import RowTask, new_problem
from dopsd.tasks.common.sources import Row, text_of

if TYPE_CHECKING:
    from dopsd.tasks.gsm8k.config import Gsm8kConfig

NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?")
TURN = re.compile(r"</reasoning>\s*<answer>")
CALCULATION = re.compile(r"<<[^\n]*?>>")  # a calculator's mark in the data: <<3*4=12>>
EXACT_LINES = re.compile(r"<reasoning>\n[^\n]*\n</reasoning>\n<answer>\n[^\n]*\n</answer>\n\n?\Z")
ONE_LINE_EACH = re.compile(r"<reasoning>[^\n]*</reasoning>\s*<answer>[^\n]*</answer>")
LONGEST = 40  # characters of a number; longer runs are noise, and slow for float()


def number(text: str, which: int) -> float | None:
    """Return the number in a text, commas dropped; None without one.

    Args:
        text: the text; if it is a finite number as a whole, that is the result.
        which: otherwise 0 takes the first number in it, -1 the last.
    """
    text = text.replace(",", "").strip()
    candidates = (
        [text] if _is_number(text) else [item for item in NUMBER.findall(text) if _is_number(item)]
    )
    return float(candidates[which]) if candidates else None


def _is_number(text: str) -> bool:
    if len(text) > LONGEST:
        return False
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def first_number(texts: Iterable[str]) -> float | None:
    """Return the first number in these texts; None without one."""
    return next((value for text in texts if (value := number(text, 0)) is not None), None)


def extract(text: str) -> float | None:
    """Return the answer in a generation, by the published rule."""
    value = first_number(boxed_to_brace(text))
    answer = closed(text, "answer") if value is None else None
    return number(answer, -1) if answer is not None else value


def extract_strict(text: str) -> Decimal | None:
    """Return the answer in a generation, by the strict rule: no part of an expression."""
    found = numbers(last_boxed(closed(text, "answer") or "") or "")
    return found[0] if found and math.isfinite(found[0]) else None


def exact(text: str) -> Decimal:
    """Return the value of a text that is a number for `float`, with digits that a float lacks."""
    try:
        return Decimal(text)
    except DecimalException:  # 1e-99999999999999999999
        return Decimal(float(text))


def _written(value: float | Decimal) -> str:
    """Return a number as people write it: 18, not 18.0; of a decimal no digit is lost."""
    if value == int(value):
        return str(int(value))
    short = str(float(value))
    return short if isinstance(value, float) or Decimal(short) == value else str(value)


class Gsm8k(RowTask):
    """The task GSM8K: right or wrong, without partial scores."""

    config: Gsm8kConfig
    name = "gsm8k"
    instructions = r"""Work out the answer to the following problem, one step after the other.
Write your steps inside <reasoning></reasoning>, then the final number in \boxed{} inside <answer></answer>:
<reasoning>
the steps
</reasoning>
<answer>
\boxed{the number}
</answer>"""  # noqa: E501

    def problem_of(self, row: Row) -> Problem:
        """Return the problem of a row {question, answer}.

        The answer is a solution that ends in `#### number`.
        """
        question, solution = text_of(row, "question"), text_of(row, "answer")
        _, mark, gold = solution.rpartition("####")
        value = only_number(gold) if mark else None
        if value is None or not math.isfinite(value) or not _is_number(_written(value)):
            raise Code.SOURCE_ROW.error(
                f"{row.place}: expected an answer that ends in `#### number`, with at most"
                f" {LONGEST} digits, found {solution[-40:]!r}"
            )
        return new_problem(self.name, question, _written(value), solution)

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        return (
            None
            if _is_number(problem.answer)
            else f"a number as the answer, found {problem.answer[:40]!r}"
        )

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a row in a file of generations.

        Args:
            ground_truth: a number; null, as in published files without a gold answer, scores 0.
        """
        is_number = isinstance(ground_truth, int | float | str | Figure) and _is_number(
            str(ground_truth).replace(",", "")
        )
        if ground_truth is not None and (isinstance(ground_truth, bool) or not is_number):
            raise Code.GENERATIONS_ROW.error(
                f"expected a number as ground_truth, found {str(ground_truth)[:40]!r}"
            )
        gold = str(ground_truth).replace(",", "")
        answer = UNKNOWN if ground_truth is None else _written(exact(gold))
        return new_problem(self.name, question, answer)

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the number in a generation, and 1 if it is correct, else 0."""
        gold = None if problem.answer == UNKNOWN else exact(problem.answer)
        golds = (None if gold is None else float(gold), gold)
        answers = (extract(text), extract_strict(text))
        pairs = [
            (None, 0.0) if value is None else (_written(value), float(value == gold))
            for value, gold in zip(answers, golds, strict=True)
        ]
        return score_by_rule(self.config.scoring, *pairs)

    def answer_text(self, problem: Problem) -> str | None:
        """Return the gold number; None if it is unknown."""
        return problem.answer or None

    def laid_out_reference(self, problem: Problem) -> str:
        """Return the reference solution as the prompt asks for it.

        Calculator's marks go, and boxes before the answer's: the published scorer reads the first.
        """
        steps, _, _ = (problem.reference or "").rpartition("####")
        return laid_out(CALCULATION.sub("", steps).replace(BOX, ""), problem.answer)

    def reward(self, problem: Problem, text: str) -> float:
        """Return the reward for RLVR, up to 4, as the sum in d1.

        2 for a correct answer (by this verifier), 0.5 for a non-negative integer, and `layout`.
        """
        value = extract(text)
        is_whole = value is not None and value >= 0 and value.is_integer()
        layout_reward = layout(text, self.config.reward_layout == "one_line")
        return 2.0 * self.verify(problem, text).correct + 0.5 * is_whole + layout_reward


def layout(text: str, one_line: bool = False) -> float:
    """Return d1's layout rewards.

    0.5 for the exact lines, 0.5 for the tags in order, and 0.125 for each line that appears once.
    Text after the answer costs 0.001 per character, twice if the closing tag has a line of its own.

    Args:
        one_line: as in d1's code, whose patterns pass no line end: the first two rewards need
            reasoning and answer of one line each, the second one without line ends at the tags.
    """
    if one_line:
        reward = 0.5 * bool(EXACT_LINES.match(text)) + 0.5 * bool(ONE_LINE_EACH.match(text))
    else:
        is_exact = (
            text.startswith("<reasoning>\n")
            and text.endswith("\n</answer>\n")
            and "\n</reasoning>\n<answer>\n" in text
        )
        reward = 0.5 * is_exact + 0.5 * _in_order(text)
    lines = ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>")
    reward += sum(0.125 for line in lines if text.count(line) == 1)
    if text.count("\n<answer>\n") == 1:
        reward -= 0.001 * len(text.rpartition("\n</answer>\n")[2])
    if text.count("\n</answer>") == 1:
        reward -= 0.001 * (len(text.rpartition("\n</answer>")[2]) - 1)
    return reward


def _in_order(text: str) -> bool:
    """Return whether the text begins with <reasoning>, and an answer follows its closing tag."""
    turn = TURN.search(text) if text.startswith("<reasoning>") else None
    return turn is not None and "</answer>" in text[turn.end() :]


def make(config: Gsm8kConfig) -> Gsm8k:
    """Return the task with its settings."""
    return Gsm8k(config)
