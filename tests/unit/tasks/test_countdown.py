"""Countdown: expressions with bounds, which of them is the answer, and made problems."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from dopsd.core.errors import DopsdError
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.json_files import Figure
from dopsd.tasks.common.sources import Row
from dopsd.tasks.countdown.arithmetic import ALL, extract, habit, problem_from, solve, value
from dopsd.tasks.countdown.config import CountdownConfig
from dopsd.tasks.countdown.task import Countdown

TASK = Countdown(CountdownConfig())
PROBLEM = problem_from([49, 55, 53], 51)


def strict(text: str) -> float:
    return TASK.verify(PROBLEM, text).figures["strict"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        (" -4/8 ", -0.5),
        ("7//2", 3),
        ("2**10", 1024),
        ("2**-1", 0.5),
        ("4.5+1", 5.5),
    ],
)
def test_values_of_expressions(text: str, found: float):
    assert value(text, ALL) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "1\x00", "+" * 100 + "1", "9" * 190, "9" * 100000, "9**" * 30 + "9"),
        *("1/0", "0**-1", "(-8)**(1/3)", "2(3)", "(1,2)", "1+", "007", "...", "1e3", "x", "1_0"),
        *("٣", "9**9**9", "9**9**9**9**9", "(9**9)**(9**9)", "99**64", "2**-9999"),
        *("(" * 100 + "1" + ")" * 100, "(" * 5000 + "1" + ")" * 5000, "(" * 100000),
        *("-" * 199 + "1", "1+" * 99 + "1"),
    ],
)
def test_what_has_no_bounded_value_is_answered_at_once(text: str):
    started = time.process_time()
    assert value(text, ALL) is None
    assert time.process_time() - started < 1  # of the processor: others slow this process down


def test_powers_and_whole_division_pass_only_where_they_are_allowed():
    assert value("2**3") is None and value("7//2") is None and value("7/2") == 3.5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1+2} \boxed{49 + 55 - 53}", "49 + 55 - 53"),
        (r"\boxed{49 \times 55 \div 53 \cdot 2}", "49 * 55 / 53 * 2"),
        (r"\boxed{49 + 55 - 53 = 51}", "49 + 55 - 53"),
        (r"\boxed 49 + 55 - 53$ \boxed{1}", "49 + 55 - 53"),  # a space: up to the dollar sign
        # no box: the first equation of the whole text
        ("x == 3, 49 + 55 = 104, 104 - 53 = 51", "49 + 55"),
        (r"<answer>49 - 55</answer> \boxed{1", "49 - 55"),  # the box stays open: the tag
        ("<answer>49 - 55</answer>", "<answer>49 - 55</answer>"),
    ],
)
def test_extraction_takes_the_published_order(text: str, found: str):
    assert extract(text) == found


def test_every_number_is_used_once_and_the_target_is_met():
    for text in ("49+55-53", "49-53+55"):
        assert TASK.verify(PROBLEM, rf"\boxed{{{text}}}").score == 1.0
    for text in ("51", "49+55-53+0", "49*55-53"):
        assert TASK.verify(PROBLEM, rf"\boxed{{{text}}}").score == 0.0


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"<answer>\boxed{49 + 55 - 53}</answer>", 1.0),
        (r"<answer>\boxed{49 + 55 - 53 = 51}</answer>", 0.0),  # published drops the right side
        (r"<answer>\boxed{49 + 55 - 53}", 0.0),
        (r"\boxed{49 + 55 - 53}", 0.0),
        ("<answer>49 + 55 - 53</answer>", 0.0),
    ],
)
def test_strict_wants_the_expression_alone_in_a_box_in_a_closed_tag(text: str, score: float):
    assert strict(text) == score


def test_strict_wants_the_target_exactly():
    problem = problem_from([1, 1, 999_999_999], 1)
    near, third = r"<answer>\boxed{1 + 1/999999999}</answer>", r"<answer>\boxed{1/3*3}</answer>"
    assert TASK.verify(problem, near).figures == {"published": 1.0, "strict": 0.0}
    assert TASK.verify(problem_from([1, 3, 3], 1), third).figures["strict"] == 1.0
    assert value("(1-1/3)/(2/3)") == 1


def test_a_point_between_two_numbers_uses_neither_in_strict_scoring():
    problem = problem_from([4, 5, 2], 9)
    figures = TASK.verify(problem, r"<answer>\boxed{4.5*2}</answer>").figures
    assert figures == {"published": 1.0, "strict": 0.0}


def test_prompts_have_the_published_words():
    assert PROBLEM.prompt == "Numbers: [49, 55, 53]\nTarget: 51"
    assert TASK.ask("49 55, 53 -> 51") == TASK.ask(PROBLEM.prompt) == PROBLEM
    with pytest.raises(DopsdError, match="expected two or more numbers"):
        TASK.ask("49 51")


@pytest.mark.parametrize(
    "row",
    [
        {"nums": [49, 55, 53], "target": 51},
        {"numbers": "[49, 55, 53]", "target": "51"},
        {"input": "49,55,53", "output": "51"},
        {"nums": None, "input": "49,55,53", "target": 51},
        {"nums": [49, 55, 53], "numbers": "49, 55, 53", "target": 51},
    ],
)
def test_rows_of_every_published_form_are_one_problem(row: dict):
    assert TASK.problem_of(Row(row, "f", 1)) == PROBLEM


@pytest.mark.parametrize(
    "row",
    [
        *({"nums": [1, "x"], "target": 1}, {"nums": [1, True], "target": 1}),
        *({"nums": [1, 2]}, {"nums": 5, "target": 1}, {}),
    ],
)
def test_a_bad_row_is_named(row: dict):
    with pytest.raises(DopsdError, match=r"^f:3: expected whole numbers"):
        TASK.problem_of(Row(row, "f", 3))


def test_two_columns_of_numbers_that_differ_are_refused():
    row = Row({"nums": [1, 2], "numbers": [1, 3], "target": 3}, "f", 3)
    with pytest.raises(DopsdError, match=r"^f:3: columns nums and numbers differ; remove one"):
        TASK.problem_of(row)


def test_a_fraction_is_named_as_the_file_has_it():
    row = Row({"nums": [1, Figure("7.0")], "target": 8}, "f", 3)
    with pytest.raises(DopsdError, match=r"found {'nums': \[1, 7\.0\], 'target': 8}$"):
        TASK.problem_of(row)
    with pytest.raises(DopsdError, match=r"expected \[numbers, target\].*found \[\[1, 7\.0\], 8\]"):
        TASK.of_generation("?", [[1, Figure("7.0")], 8])


def reachable(given: list[int]) -> set[float]:
    """Every value of all the given numbers, by brute force."""
    if len(given) == 1:
        return {given[0]}
    found: set[float] = set()
    for a, b in itertools.permutations(range(len(given)), 2):
        rest = [n for i, n in enumerate(given) if i not in (a, b)]
        x, y = given[a], given[b]
        for made in (x + y, x - y, x * y, *([x / y] if y else [])):
            found |= reachable([*rest, made])
    return found


@pytest.mark.parametrize("count", [3, 4])
def test_made_problems_can_be_solved_are_distinct_and_keep_off_test(tmp_path: Path, count: int):
    test = [{"nums": [1, 2, 3], "target": 6}, {"nums": [1, 2, 3, 4], "target": 10}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in test))
    source = Source(path=str(tmp_path / "t.jsonl"))
    config = CountdownConfig(test=source, numbers=count, generate=30, validation=5)
    splits = Countdown(config).build()
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [30, 5, 1]
    made = [p for problems in splits.values() for p in problems]
    assert len({TASK.identity(p) for p in made}) == 36
    for problem in made:
        target, found = problem.extra["target"], reachable(problem.extra["numbers"])
        assert any(abs(v - target) < 1e-6 for v in found)
    assert Countdown(config).build() == splits
    assert Countdown(config.model_copy(update={"seed": 1})).build()["train"] != splits["train"]


SMALL = CountdownConfig(test=None, generate=300, generate_test=40, validation=40, largest=9)


def number_sets(problems: list) -> set[tuple[int, ...]]:
    return {tuple(sorted(p.extra["numbers"])) for p in problems}


def test_generated_splits_share_no_set_of_numbers_and_no_stream():
    splits = Countdown(SMALL).build()
    assert [len(problems) for problems in splits.values()] == [300, 40, 40]
    train, validation, test = (number_sets(problems) for problems in splits.values())
    assert not (train & validation or train & test or validation & test)
    assert max(n for group in (train, validation, test) for numbers in group for n in numbers) == 9
    for key in ("validation", "generate_test"):
        fewer = Countdown(SMALL.model_copy(update={key: 7})).build()
        changed = [name for name in splits if fewer[name] != splits[name]]
        assert changed == [key.removeprefix("generate_")]
        assert fewer[changed[0]] == splits[changed[0]][:7]


def test_numbers_of_a_test_file_are_in_no_generated_split(tmp_path: Path):
    taken = sorted(number_sets(Countdown(SMALL).build()["train"]))[:20]
    rows = [{"nums": numbers[::-1], "target": sum(numbers)} for numbers in taken]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Source(path=str(tmp_path / "t.jsonl"))
    splits = Countdown(SMALL.model_copy(update={"test": source, "generate_test": 0})).build()
    assert not number_sets(splits["train"] + splits["validation"]) & set(taken)


@pytest.mark.parametrize(
    ("numbers", "target", "expression", "steps"),
    [
        ([3, 5, 7], 56, "(5+3)*7", ("5+3=8", "8*7=56")),
        ([8, 2, 9], 36, "9*8/2", ("9*8=72", "72/2=36")),
        ([2, 8, 12], 2, "12-(8+2)", ("8+2=10", "12-10=2")),
        ([8, 2, 4], 4, "8/(4-2)", ("4-2=2", "8/2=4")),
        ([9, 8, 2], 3, "9+2-8", ("9+2=11", "11-8=3")),
        ([2, 3, 12], 8, "12*2/3", ("12*2=24", "24/3=8")),
        ([9, 8, 2], 14, None, ()),
    ],
)
def test_solutions_by_hand(numbers: list[int], target: int, expression: str | None, steps: tuple):
    term = solve(numbers, target)
    assert (term and term.text, term.steps if term else ()) == (expression, steps)


def test_careful_solutions_are_right_and_the_habit_follows_the_size_of_the_target():
    task = Countdown(SMALL)
    problems = task.build()["train"]
    for problem in problems:
        text = task.worked_solution(problem, True)
        assert set(task.verify(problem, text).figures.values()) == {1.0}  # by both rules
        assert task.solver_answer(problem) in text
    assert habit([3, 9, 5], 18).text == "9*5+3" and habit([3, 9, 5], 17).text == "9+5-3"
    scores = [task.verify(p, task.worked_solution(p, False)).score for p in problems]
    assert 0 < sum(scores) < 0.3 * len(scores)  # right for some problems, by chance


def test_problems_and_solutions_need_only_the_operators_that_are_asked_for():
    few = SMALL.model_copy(update={"operators": "+-", "generate": 900})
    task = Countdown(few)
    splits = task.build()
    assert len({p.prompt for p in splits["train"]}) == 900
    assert len({task.identity(p) for p in splits["train"]}) < 900  # in several orders
    assert len({task.identity(p) for p in splits["test"]}) == 40
    for problem in splits["train"]:
        text = task.worked_solution(problem, True)
        assert task.verify(problem, text).score == 1 and not set(text) & set("*")
        assert set(task.solver_answer(problem)) <= set("0123456789+-()")
    assert solve([6, 3, 2], 5, "+-").text == "6+2-3" and solve([6, 3, 2], 9, "+-") is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"test": None}, "generate_test above 0"),
        ({"generate_test": 5}, "name a file in test"),
        ({"test": None, "generate_test": 5}, "generate_test needs generate"),
    ],
)
def test_contradicting_sources_are_refused(changes: dict, expected: str):
    with pytest.raises(ValueError, match=expected):
        CountdownConfig(**changes)


def test_too_few_problems_name_the_key():
    config = SMALL.model_copy(update={"generate_test": 9000})
    with pytest.raises(DopsdError, match=r"data\.countdown\.generate_test: found only \d+ "):
        Countdown(config).build()


def test_rows_with_another_count_of_numbers_name_the_key(tmp_path: Path):
    (tmp_path / "t.jsonl").write_text('{"nums": [1, 2], "target": 3}\n')
    source = Source(path=str(tmp_path / "t.jsonl"))
    said = r"no usable row.* of 3 numbers \(data\.countdown\.numbers\)"
    with pytest.raises(DopsdError, match=said):
        Countdown(SMALL.model_copy(update={"test": source, "numbers": 3})).read("test")


def test_a_damaged_problem_on_disk_is_recognised():
    damaged = problem_from([1, 2], 3)
    assert TASK.fault(damaged) is None
    damaged.extra["target"] = 4
    assert "prompt" in TASK.fault(damaged)
