"""Puzzles, splits, and every branch of the verifier on hand-written generations."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from texts import PUBLISHED, needs_golden

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.sudoku.config import SudokuConfig
from dopsd.tasks.sudoku.task import (
    Sudoku,
    all_grids,
    extract,
    is_valid,
    make_puzzle,
    read_published,
    solutions,
)

GRID = "1234341221434321"
PROBLEM = Problem("p", "0234341221434320", GRID)
SMALL = SudokuConfig(train=40, validation=10, test=10)


def test_there_are_288_grids_and_each_is_valid():
    assert len(set(all_grids())) == 288 and all(is_valid(grid) for grid in all_grids())
    for broken in (f"{GRID[:-1]}2", 4 * "1234", GRID[1:], f"{GRID[:-1]}0"):
        assert not is_valid(broken)


def test_puzzles_have_the_asked_blanks_and_one_solution():
    puzzle = make_puzzle(GRID, 8, random.Random(0))
    assert puzzle.count("0") == 8 and solutions(puzzle) == [GRID]
    assert len(solutions("0" * 16)) == 2  # an ambiguous one


def built(**changes: object) -> dict[str, list[Problem]]:
    return Sudoku(SMALL.model_copy(update=changes)).build()


def test_splits_share_no_grid_and_no_puzzle_and_follow_their_seed_and_limit():
    splits = built()
    grids = [{p.answer for p in problems} for problems in splits.values()]
    assert not (grids[0] & grids[1] or grids[0] & grids[2] or grids[1] & grids[2])
    assert [len(problems) for problems in splits.values()] == [40, 10, 10]
    assert len({p.id for problems in splits.values() for p in problems}) == 60
    assert built() == splits != built(seed=1)
    assert built(limit=3) == {name: problems[:3] for name, problems in splits.items()}


@pytest.mark.parametrize(
    "counts", [{"train": 50}, {"validation": 7}, {"test": 300, "validation": 1}]
)
def test_the_size_of_a_split_changes_no_other_split(counts: dict[str, int]):
    whole, other = built(), built(**counts)
    assert {name for name in whole if whole[name] != other[name]} == set(counts)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"<answer>{GRID}</answer>", GRID),
        ("<answer>\n1234\n3412 2143\n4321\n</answer>", GRID),
        (f"<answer>the grid: ```{GRID}``` </answer>", GRID),  # fenced digits go first
        (f"<answer>{GRID}<|eot_id|> more", GRID),  # up to a stop token
        (f"<answer>{GRID}<|im_end|> more", GRID),
        (f"no tag {GRID}</answer>", GRID),  # 16 digits before the closing tag
        (f"so it is {GRID}.", GRID),  # any 16 digits
        (f"thus</answer> {GRID[:8]}", GRID[:8] + "0" * 8),  # text after the closing tag, padded
        ("<answer>12</answer>", "12" + "0" * 14),
        (f"<answer>{GRID}99</answer>", GRID),  # cut to 16
        ("<answer>   </answer>", None),
        ("12345", None),
    ],
)
def test_extraction_takes_the_published_order(text: str, answer: str | None):
    assert extract(text) == answer


def test_the_score_is_the_share_of_blank_cells_that_are_right():
    task = Sudoku(SMALL)
    assert task.verify(PROBLEM, f"<answer>{GRID}</answer>").score == 1.0
    tmp = task.verify(PROBLEM, f"<answer>{GRID[:15]}4</answer>")
    assert (tmp.score, tmp.correct, tmp.answer) == (0.5, False, GRID[:15] + "4")
    nothing = task.verify(PROBLEM, "no idea")
    assert (nothing.answer, nothing.score, nothing.correct) == (None, 0.0, False)
    assert task.reward(PROBLEM, f"<answer>{GRID[:15]}4</answer>") == 0.5


def test_strict_scoring_counts_only_a_whole_answer_in_its_tags():
    strict = Sudoku(SudokuConfig(scoring="strict"))
    assert strict.verify(PROBLEM, f"<answer>{GRID}</answer>").correct
    assert strict.verify(PROBLEM, f"so it is {GRID}").answer is None
    assert strict.verify(PROBLEM, f"<answer>{GRID}1</answer>").answer is None
    both = strict.verify(PROBLEM, f"so it is {GRID}").figures
    assert both == {"published": 1.0, "strict": 0.0, "valid_grid": 0.0}


def test_another_solution_of_an_ambiguous_puzzle_is_a_valid_grid_and_not_the_answer():
    puzzle = "0000000021434321"
    one, other = solutions(puzzle)
    score = Sudoku(SMALL).verify(Problem("p", puzzle, one), f"<answer>{other}</answer>")
    assert score.figures["valid_grid"] == 1.0 and score.score < 1.0
    moved = Sudoku(SMALL).verify(PROBLEM, f"<answer>{all_grids()[-1]}</answer>")
    assert moved.figures["valid_grid"] == 0.0  # a solved grid that overwrites the givens


def test_worked_solutions_are_right_when_careful_and_keep_the_givens_when_not():
    task = Sudoku(SMALL)
    assert task.verify(PROBLEM, task.worked_solution(PROBLEM, True)).correct
    careless = task.worked_solution(Problem("p", "0204341200104321", GRID), False)
    assert careless == "<reasoning>1234341223144321</reasoning><answer>1234341223144321</answer>"


def test_prompts_are_the_digits_the_instructions_or_an_own_text(tmp_path: Path):
    (tmp_path / "p.txt").write_text("Solve it.")
    own = f"Solve it.\n\nSolve the following Sudoku puzzle: {PROBLEM.prompt}\n"
    for config in (SMALL, SudokuConfig(prompt_file=str(tmp_path / "p.txt"))):
        task = Sudoku(config)
        assert task.messages(PROBLEM, "compact") == [{"role": "user", "content": PROBLEM.prompt}]
        text = task.messages(PROBLEM, "instructions")[0]["content"]
        assert text == own if config.prompt_file else PROBLEM.prompt in text and "<answer>" in text


HEAD, ROW = "Puzzle,Solution\n", f"0234341221434320,{GRID}\n"


def published(path: Path, rows: list[str]) -> Path:
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def test_a_published_file_gives_the_test_split_and_keeps_its_grids_from_the_others(tmp_path: Path):
    rows = [f"0{grid[1:]},{grid}" for grid in all_grids()[:20]]
    file = published(tmp_path / "test.csv", rows)
    splits = built(test_file=str(file))
    taken = {p.answer for p in splits["test"]}
    assert len(taken) == 10 and taken <= set(all_grids()[:20])
    assert not taken & {p.answer for p in splits["train"] + splits["validation"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{HEAD}{ROW}123,{GRID}\n", "test.csv:3"),
        (f"{HEAD}{ROW}0234341221434320,{GRID[:-1]}2\n", "test.csv:3"),
        (f"{HEAD}{ROW}2{'0' * 15},{GRID}\n", "test.csv:3"),
        (f"{HEAD}{ROW}", "1 puzzles"),
        (ROW * 2, r"test\.csv:2: expected a text in column Puzzle"),
        (None, r"data\.sudoku\.test_file: .*test\.csv: no such file"),
    ],
)
def test_a_file_that_gives_no_puzzles_is_named_with_its_row(tmp_path: Path, content, said: str):
    if content is not None:
        (tmp_path / "test.csv").write_text(content)
    with pytest.raises(DopsdError, match=said):
        read_published(tmp_path / "test.csv", 2)


def test_repeated_puzzles_of_a_file_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture):
    file = published(tmp_path / "test.csv", [f"0234341221434320,{GRID}"] * 3)
    assert len(read_published(file, 3)) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"sudoku: 2 of 3 rows of {file} repeat a puzzle, and count each"


@needs_golden
def test_the_published_rows_cover_156_grids():
    rows = read_published(PUBLISHED / "sudoku" / "test.csv", 256)
    assert len({p.answer for p in rows}) == 156
    assert sum(len(solutions(p.prompt)) > 1 for p in rows) == 63


def test_an_answer_is_laid_out_as_a_grid_of_given_and_right_cells():
    text = "<reasoning>1</reasoning><answer>3234341221434321</answer>"
    rows = Sudoku(SMALL).grid(PROBLEM, text)
    assert [len(row) for row in rows] == [4, 4, 4, 4]
    cells = [cell for row in rows for cell in row]
    assert "".join(text[cell.start : cell.end] for cell in cells) == "3234341221434321"
    assert [cell.is_given for cell in cells] == [False] + [True] * 14 + [False]
    assert [cell.is_right for cell in cells] == [False] + [True] * 15
    for other in ("<answer>12</answer>", "<answer>1<answer>3234341221434321</answer>", ""):
        assert Sudoku(SMALL).grid(PROBLEM, other) is None  # what is scored is no grid
