"""Rewards of RLVR by hand, the published scores, and bounds for whatever is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from texts import garbage, needs_golden, published_mean

from dopsd.core.types import Problem
from dopsd.tasks.chains.config import ChainsConfig
from dopsd.tasks.chains.task import Chains
from dopsd.tasks.countdown.arithmetic import ALL, value
from dopsd.tasks.countdown.config import CountdownConfig
from dopsd.tasks.countdown.task import Countdown
from dopsd.tasks.gsm8k.config import Gsm8kConfig
from dopsd.tasks.gsm8k.task import Gsm8k
from dopsd.tasks.math500.config import Math500Config
from dopsd.tasks.math500.task import Math500, is_same
from dopsd.tasks.sudoku.config import SudokuConfig
from dopsd.tasks.sudoku.task import Sudoku

SUM = Problem("g", "2 + 3", "5")
NUMBERS = Problem("c", "3 4 5", "", None, {"numbers": [3, 4, 5], "target": 12})
HALF = Problem("m", "", r"\frac{1}{2}")
GSM8K, COUNTDOWN = Gsm8k(Gsm8kConfig()), Countdown(CountdownConfig())
MATH500 = Math500(Math500Config())
SUDOKU, CHAINS = Sudoku(SudokuConfig()), Chains(ChainsConfig())
PROBLEMS = {GSM8K: SUM, COUNTDOWN: NUMBERS, MATH500: HALF, CHAINS: CHAINS.ask("3 *4 -1 +2")}
PROBLEMS[SUDOKU] = Problem("s", "0234341221434320", "1234341221434321")


LAID_OUT = "<reasoning>\n2 and 3\n</reasoning>\n<answer>\n\\boxed{N}\n</answer>\n"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (LAID_OUT.replace("N", "5"), 2 + 0.5 + 0.5 + 0.5 + 4 * 0.125),
        (LAID_OUT.replace("N", "6"), 0.5 + 0.5 + 0.5 + 4 * 0.125),
        ("<reasoning>2 and 3</reasoning> <answer>\\boxed{5}</answer>", 2 + 0.5 + 0.5),
        (LAID_OUT.replace("N", "5") + "more", 2 + 0.5 + 0.5 + 0.5 - 0.004 - 0.004),
        ("about half", 0.0),
    ],
)
def test_gsm8k(text: str, reward: float):
    assert GSM8K.reward(SUM, text) == pytest.approx(reward)


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
def test_layout_of_gsm8k_over_several_lines(reasoning, answer, any_lines, one_line):
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
    assert COUNTDOWN.reward(NUMBERS, text) == reward


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
    assert MATH500.reward(HALF, text) == reward


@given(garbage())
def test_scores_and_rewards_are_bounded_whatever_is_written(text: str):
    for task, problem in PROBLEMS.items():
        assert 0.0 <= task.verify(problem, text).score <= 1.0
    assert -0.002 * len(text) <= GSM8K.reward(SUM, text) <= 4.0
    assert COUNTDOWN.reward(NUMBERS, text) in (0.0, 0.1, 1.0)
    assert 0.25 <= MATH500.reward(HALF, text) <= 3.0 and is_same(text, text)
    assert value(text, ALL) is None or abs(value(text, ALL)) <= 1e15


@pytest.mark.parametrize("task", [GSM8K, MATH500])
def test_a_question_typed_by_a_person_has_no_gold_and_scores_nothing(task):
    for text in (r"\boxed{0}", r"\boxed{}", ""):
        assert task.verify(task.ask("How many?"), text).score == 0.0


@needs_golden
@pytest.mark.parametrize(
    ("task", "as_parsed", "mean"),
    [
        (COUNTDOWN, lambda answer: answer, 19.53125),
        (GSM8K, lambda answer: None if answer is None else float(answer), 77.257),
        (MATH500, lambda answer: answer, 32.4),
        (SUDOKU, lambda answer: answer or "", 6.689),
    ],
)
def test_the_published_generations_get_the_published_scores(task, as_parsed, mean: float):
    assert published_mean(task, as_parsed) == pytest.approx(mean, abs=5e-4)
