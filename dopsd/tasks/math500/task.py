r"""MATH: competition problems whose answer is a LaTeX expression.

Test is MATH-500 (Lightman et al. 2023). published: the last \boxed{}, but first what
follows a `\boxed ` with a space; the <answer> tag if the box is empty or stays open; the whole text
without a box. strict: a \boxed{} in a closed <answer>.
Answers are compared in their normal form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.answers import (
    BOX,
    UNKNOWN,
    braced,
    closed,
    laid_out,
    last_boxed,
    published_box,
    score_by_rule,
)
from dopsd.tasks.common.rows import RowTask, new_problem
from dopsd.tasks.common.sources import Row, text_of

if TYPE_CHECKING:
    from dopsd.tasks.common.config import RowTaskConfig


def extract(text: str) -> str | None:
    """Return the answer in a generation, by the published rule."""
    box = published_box(text)
    answer = None if box else closed(text, "answer")
    return box if answer is None else answer.strip()


def extract_strict(text: str) -> str | None:
    """Return the answer in a generation, by the strict rule."""
    return last_boxed(closed(text, "answer") or "")


class Math500(RowTask):
    """The task MATH500: right or wrong, without partial scores."""

    name = "math500"
    instructions = r"""Solve the following mathematics problem and justify each step.
Write the solution inside <reasoning></reasoning>, then its result, in LaTeX, in \boxed{} inside <answer></answer>:
<reasoning>
the solution
</reasoning>
<answer>
\boxed{the result}
</answer>"""  # noqa: E501

    def problem_of(self, row: Row) -> Problem:
        r"""Return the problem of a row {problem, answer} or {problem, solution}.

        Without a column `answer`, the answer is in the last \boxed{} of the solution.
        """
        problem = text_of(row, "problem")
        solution = row.values.get("solution")
        gold = row.values.get("answer")
        if gold is None and isinstance(solution, str):
            gold = last_boxed(solution) or _unbraced(solution)
        if not isinstance(gold, str) or not gold.strip():
            raise Code.SOURCE_ROW.error(
                f"{row.place}: expected a text in column answer, or a solution with its answer in"
                " \\boxed{}"
            )
        return new_problem(
            self.name, problem, gold, solution if isinstance(solution, str) else None
        )

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        return None if problem.answer.strip() else "an answer that is not blank"

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a row of generations; ground truth is the answer as text."""
        if not isinstance(ground_truth, str) or not ground_truth:
            raise Code.GENERATIONS_ROW.error(
                f"expected a text as ground_truth, found {str(ground_truth)[:40]!r}"
            )
        return new_problem(self.name, question, ground_truth)

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and 1 if it equals the gold answer, else 0."""
        pairs = [
            (answer, _score(answer, problem.answer))
            for answer in (extract(text), extract_strict(text))
        ]
        return score_by_rule(self.config.scoring, *pairs)

    def answer_text(self, problem: Problem) -> str | None:
        """Return the gold answer, in LaTeX; None if it is unknown."""
        return problem.answer or None

    def laid_out_reference(self, problem: Problem) -> str:
        r"""Return the reference solution as the prompt asks for it.

        A `\boxed ` with a space goes: the published scorer would read it before the last box.
        """
        return laid_out((problem.reference or "").replace(BOX + " ", ""), problem.answer)

    def reward(self, problem: Problem, text: str) -> float:
        r"""Return the reward for RLVR, up to 3, as in the d1 paper.

        2 for a correct answer; plus 1 for a \boxed{} in the <answer>, 0.75 for an <answer> without
        a box, 0.5 for a box without an <answer>, 0.25 for neither. (In d1's code an escape sequence
        hides every box.)
        """
        answer = closed(text, "answer")
        layout = (
            0.25 + 0.5 * (answer is not None) + 0.25 * (BOX in (text if answer is None else answer))
        )
        return 2.0 * self.verify(problem, text).correct + layout


def _unbraced(solution: str) -> str | None:
    r"""Return the answer of the older forms: `\boxed 5` up to a dollar sign, or `\fbox{5}`."""
    start = solution.rfind(BOX + " ")
    if start >= 0:
        return solution[start + len(BOX) + 1 :].split("$")[0].strip() or None
    framed = solution.rfind("\\fbox{")
    return braced(solution, framed) if framed >= 0 else None


def _score(answer: str | None, gold: str) -> float:
    return float(answer is not None and gold != UNKNOWN and is_same(answer, gold))


def make(config: RowTaskConfig) -> Math500:
    """Return the task with its settings."""
    return Math500(config)


DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
UNIT = "\\text{ "
WHOLE = r"-?(?:0|[1-9][0-9]*)"


class Unreadable(ValueError):
    """A text without a normal form; such answers are compared as written."""


def is_same(answer: str, gold: str) -> bool:
    """Return whether two answers have the same normal form."""
    try:
        return normal(answer) == normal(gold)
    except Unreadable:
        return answer == gold


NAME_LENGTH = 2  # characters of a name before `=`, at most


def normal(text: str) -> str:
    r"""Return the normal form of an answer.

    Raises:
        Unreadable: if the text names units twice, or ends in a bare \sqrt or \frac.
    """
    text = _plain(text)
    if not text:
        return text
    text = re.sub(r"^\.", "0.", text.replace(" .", " 0.").replace("{.", "{0."))
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= NAME_LENGTH:
        text = value
    text = _fractions(_roots(text).replace(" ", ""))
    return _ratio(r"\frac{1}{2}" if text == "0.5" else text)


def _plain(text: str) -> str:
    """Drop layout, degrees, currency, percent signs and units; make double backslashes single."""
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for token in DROPPED:
        text = text.replace(token, "")
    before, _, after = text.partition(UNIT)
    if UNIT in after:
        raise Unreadable(text[:80])
    return before.replace("\\%", "").replace("%", "")


def _roots(text: str) -> str:
    r"""Write \sqrt3 as \sqrt{3}."""
    if text.endswith("\\sqrt"):
        raise Unreadable(text[:80])
    return re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text)


def _fractions(text: str) -> str:
    r"""Write \frac12 as \frac{1}{2}, and \frac1{72} as \frac{1}{72}."""
    if text.endswith("\\frac"):
        raise Unreadable(text[:80])
    return re.sub(r"\\frac([^{])(?:([^{])|(?=\{))", _braced_fraction, text)


def _braced_fraction(match: re.Match[str]) -> str:
    denominator = f"{{{match[2]}}}" if match[2] else ""
    return f"\\frac{{{match[1]}}}{denominator}"


def _ratio(text: str) -> str:
    r"""Write 3/4 as \frac{3}{4}, for two integers in their shortest form."""
    match = re.fullmatch(f"({WHOLE})/({WHOLE})", text)
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if match else text
