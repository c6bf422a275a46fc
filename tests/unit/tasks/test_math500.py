r"""MATH: which \boxed{} is the answer, which spellings are one, and rows of the dataset."""

from __future__ import annotations

import pytest

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.common.sources import Row
from dopsd.tasks.math500.config import Math500Config
from dopsd.tasks.math500.task import Math500, extract, extract_strict, is_same, normal

TASK = Math500(Math500Config())
PROBLEM = Problem("p", "What is it?", r"\frac{1}{2}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),  # the last, with its braces
        (r"\boxed{1} and <answer> \boxed{2 </answer>", r"\boxed{2"),  # it stays open: the tag
        (r"\boxed{1} and \boxed{2", None),
        (r"<answer>\boxed{}</answer>", r"\boxed{}"),
        (r"so $\boxed 5$. Done", "5"),  # a space: up to the dollar sign
        (r"\boxed 5, not \boxed{6}", r"5, not \boxed{6}"),  # it comes before any other box
        (r"\boxed5 {x}", r"\boxed5 {x}"),  # as it stands
        (r"\fbox{1}", r"\fbox{1}"),
        (r"\fbox{1 <answer>2</answer>", "2"),
        (r"\boxed}{1}} <answer>3</answer>", "3"),  # a brace that was never opened
        ("2", "2"),  # no box: the whole text
    ],
)
def test_extraction_takes_the_published_order(text: str, found: str | None):
    assert extract(text) == found


def test_strict_wants_a_box_in_a_closed_tag():
    assert extract_strict(r"<answer>\boxed{x}</answer>") == "x"
    assert extract_strict(r"\boxed{x}<answer>x</answer>") is None
    assert extract_strict(r"<answer>\boxed{x}") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2", r"\frac{1}{2}"),
        ("0.5", r"\frac12"),
        (".5", "0.5"),
        (r"\dfrac1{72}", r"\tfrac{1}{72}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"90^\circ", "90"),
        (r"\$ 10\%", "10"),
        (r"5\text{ inches}", "5"),
        ("x = 5", "5"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("10,\\!000", "10,000"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}1\\2\\end{pmatrix}"),
    ],
)
def test_spellings_that_are_the_same(one: str, other: str):
    assert is_same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("2/4", "1/2"), ("abc=5", "5"), ("x", "X"), (r"\sqrt{2}", "2"), ("", "0"), ("1,2", "12")],
)
def test_spellings_that_are_not(one: str, other: str):
    assert not is_same(one, other)


def test_what_has_no_normal_form_is_compared_as_written():
    twice = r"1\text{ m}\text{ s}"
    assert is_same(twice, twice) and not is_same(twice, "1")
    assert normal(r"1\text{ m}") == "1"


def test_a_row_has_its_answer_or_a_solution_that_boxes_it():
    text = r"\boxed{1}, so \boxed{x^{2}}."
    solved = TASK.problem_of(Row({"problem": "q", "solution": text}, "f", 1))
    assert (solved.answer, solved.reference) == ("x^{2}", text)
    for text, answer in ((r"so $\boxed 5$.", "5"), (r"so \fbox{7}.", "7")):  # older forms
        row = Row({"problem": "q", "solution": text}, "f", 1)
        assert TASK.problem_of(row).answer == answer
    row = Row({"problem": "q", "answer": "7", "solution": None}, "f", 1)
    assert TASK.problem_of(row).answer == "7"
    with pytest.raises(DopsdError, match=r"^f:2: expected a text in column answer"):
        TASK.problem_of(Row({"problem": "q", "solution": "none"}, "f", 2))
