"""GSM8K: what counts as the number of an answer, and rows of the dataset."""

from __future__ import annotations

import pytest

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.common.sources import Row
from dopsd.tasks.gsm8k.config import Gsm8kConfig
from dopsd.tasks.gsm8k.task import Gsm8k, extract, extract_strict

TASK = Gsm8k(Gsm8kConfig())
PROBLEM = Problem("p", "How many?", "1234")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{18}", 18.0),
        (r"\boxed{} then \boxed{7} then \boxed{8}", 7.0),  # the first that holds a number
        (r"\boxed{1,234}", 1234.0),
        (r"\boxed{\$18.50 in all, not 20}", 18.5),  # the first number of a box
        (r"\boxed{\frac{3}{4}}", 3.0),  # the box ends at its first brace
        ("\\boxed{\n5}<answer>6</answer>", 6.0),  # and on its line
        (r"\boxed{-3.}", -3.0),
        ("<answer>from 5 to 9 days</answer>", 9.0),  # the last number of the tag
        ("<answer>2 <answer>3</answer> 4</answer>", 3.0),
        ("the answer is 12", None),
        # no answer is infinite: 1e999 starts with 1
        (r"\boxed{nan} \boxed{inf} \boxed{1e999}", 1.0),
        (r"\boxed{²}", None),
        (r"\boxed{" + "9" * 5000 + "}", None),
    ],
)
def test_extraction_takes_the_published_order(text: str, found: float | None):
    assert extract(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"<answer>\boxed{18}</answer>", 18.0),
        (r"<answer>\boxed{7} or \boxed{18}</answer>", 18.0),
        (r"<answer>\boxed{18}", None),  # a tag that stays open
        ("<answer>18</answer>", None),
        (r"\boxed{18}<answer></answer>", None),
        (r"<answer>\boxed{\frac{1}{2}}</answer>", None),  # no part of an expression
        (r"<answer>\boxed{10^6}</answer>", None),
        (r"<answer>\boxed{6:30}</answer>", None),
        ("<answer>\\boxed{\u22125}</answer>", -5.0),
        (r"<answer>\boxed{-\$5}</answer>", -5.0),
        (r"<answer>\boxed{1{,}000 \text{ miles}}</answer>", 1000.0),
        (r"<answer>\boxed{1e999}</answer>", None),
    ],
)
def test_strict_wants_a_box_in_a_closed_tag(text: str, found: float | None):
    assert extract_strict(text) == found


def test_the_rule_of_the_settings_gives_the_verdict_and_both_are_figures():
    text = r"so \boxed{1,234}"
    lenient = TASK.verify(PROBLEM, text)
    strict = Gsm8k(Gsm8kConfig(scoring="strict")).verify(PROBLEM, text)
    assert (lenient.answer, lenient.score, lenient.correct) == ("1234", 1.0, True)
    assert (strict.answer, strict.score, strict.correct) == (None, 0.0, False)
    assert lenient.figures == strict.figures == {"published": 1.0, "strict": 0.0}


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ("9007199254740993", "9007199254740992"),
        ("-9,007,199,254,740,993", "-9007199254740992"),
        ("0.1", "0.1000000000000000055"),
        ("123456789012345678.25", "123456789012345678.5"),
        ("100000000000000000000001", "100000000000000000000002"),
    ],
)
def test_strict_tells_numbers_apart_that_are_equal_as_floats(gold: str, wrong: str):
    row = Row({"question": "?", "answer": f"Add.\n#### {gold}"}, "f", 1)
    for problem in (TASK.problem_of(row), TASK.of_generation("?", gold)):
        assert problem.answer == gold.replace(",", "")
        for number, strict in ((gold, 1.0), (wrong, 0.0)):
            found = TASK.verify(problem, rf"<answer>\boxed{{{number}}}</answer>").figures
            assert found == {"published": 1.0, "strict": strict}


def test_gold_numbers_are_written_as_they_always_were():
    golds = {"18.50": "18.5", "1e3": "1000", "-0": "0", "0.0000001": "1e-07", "1.10": "1.1"}
    for gold, stored in golds.items():
        row = Row({"question": "?", "answer": f"#### {gold}"}, "f", 1)
        assert TASK.problem_of(row).answer == stored
    assert TASK.of_generation("?", 18.0).answer == "18"


def test_a_row_becomes_a_problem_with_its_solution():
    text = "Add them.\n#### 1,234"
    found = TASK.problem_of(Row({"question": "How many?", "answer": text}, "f", 1))
    assert (found.prompt, found.answer, found.reference) == ("How many?", "1234", text)


@pytest.mark.parametrize(
    "row",
    [
        *({"question": "q", "answer": "12"}, {"question": "", "answer": "#### 1"}),
        *({"answer": "#### 1"}, {"question": "q", "answer": "#### 3,5"}),
        {"question": "q", "answer": f"#### {10**45}"},  # which no generation can give
    ],
)
def test_a_bad_row_is_named(row: dict):
    with pytest.raises(DopsdError, match=r"^f:3: expected"):
        TASK.problem_of(Row(row, "f", 3))


def test_the_instructions_ask_for_what_strict_wants():
    (message,) = TASK.messages(PROBLEM, "instructions")
    assert message["role"] == "user" and message["content"].endswith("\n\nHow many?")
    for part in ("<reasoning>", "</reasoning>", "<answer>", "</answer>", r"\boxed{"):
        assert part in message["content"]
