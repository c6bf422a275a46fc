"""Rewards of RLVR by task: d1's published sums, counted by hand, and bounds for whatever a model
may write.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from texts import garbage

from dopsd.core.types import Problem
from dopsd.tasks.countdown.config import CountdownConfig
from dopsd.tasks.countdown.task import Countdown
from dopsd.tasks.gsm8k.config import Gsm8kConfig
from dopsd.tasks.gsm8k.task import Gsm8k
from dopsd.tasks.math500.config import Math500Config
from dopsd.tasks.math500.task import Math500

SUM = Problem("g", "2 + 3", "5")
NUMBERS = Problem("c", "3 4 5", "", None, {"numbers": [3, 4, 5], "target": 12})
HALF = Problem("m", "", r"\frac{1}{2}")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (
            "<reasoning>\n2 and 3\n</reasoning>\n<answer>\n\\boxed{5}\n</answer>\n",
            2 + 0.5 + 0.5 + 0.5 + 4 * 0.125,
        ),
        (
            "<reasoning>\n2 and 3\n</reasoning>\n<answer>\n\\boxed{6}\n</answer>\n",
            0.5 + 0.5 + 0.5 + 4 * 0.125,
        ),
        ("<reasoning>2 and 3</reasoning> <answer>\\boxed{5}</answer>", 2 + 0.5 + 0.5),
        (
            "<reasoning>\n2\n</reasoning>\n<answer>\n\\boxed{5}\n</answer>\nmore",
            2 + 0.5 + 0.5 + 0.5 - 0.004 - 0.004,
        ),
        ("about half", 0.0),
    ],
)
def test_gsm8k(text: str, reward: float):
    assert Gsm8k(Gsm8kConfig()).reward(SUM, text) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("reasoning", "answer", "any_lines", "one_line"),
    [
        ("\n2 and 3\n", "\n\\boxed{5}\n", 4.0, 3.5),  # d1's soft pattern passes no line end
        ("\n2\nand 3\n", "\n\\boxed{5}\n", 4.0, 3.0),  # nor does its strict one
        ("\n2 and 3\n", "\nso\n\\boxed{5}\n", 4.0, 3.0),
        ("2 and 3", "\\boxed{5}", 3.0, 3.0),
        ("2\nand 3", "\\boxed{5}", 3.0, 2.5),
    ],
)
def test_layout_of_gsm8k_over_several_lines(
    reasoning: str, answer: str, any_lines: float, one_line: float
):
    text = f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>\n"
    for layout, reward in (("any_lines", any_lines), ("one_line", one_line)):
        task = Gsm8k(Gsm8kConfig(reward_layout=layout))
        assert task.reward(SUM, text) == pytest.approx(reward), layout


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<answer>\\boxed{3 + 4 + 5}</answer>", 1.0),
        ("<answer>\\boxed{3 + 4 - 5}</answer>", 0.1),
        ("<answer>no idea</answer>", 0.1),
        ("3 + 4 and so on", 0.0),
    ],
)
def test_countdown(text: str, reward: float):
    assert Countdown(CountdownConfig()).reward(NUMBERS, text) == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (r"<answer>\boxed{\frac12}</answer>", 3.0),
        (r"<answer>\boxed{2}</answer>", 1.0),
        ("<answer>2</answer>", 0.75),
        (r"so \boxed{2}", 0.5),
        ("so 2", 0.25),
    ],
)
def test_math500(text: str, reward: float):
    assert Math500(Math500Config()).reward(HALF, text) == reward


@given(garbage())
def test_rewards_are_bounded_whatever_is_written(text: str):
    assert -0.002 * len(text) <= Gsm8k(Gsm8kConfig()).reward(SUM, text) <= 4.0
    assert Countdown(CountdownConfig()).reward(NUMBERS, text) in (0.0, 0.1, 1.0)
    assert 0.25 <= Math500(Math500Config()).reward(HALF, text) <= 3.0
