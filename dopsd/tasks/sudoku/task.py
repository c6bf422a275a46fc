"""4x4 Sudoku: splits disjoint by solution grid, and a graded verifier.

A puzzle is 16 digits read row by row, 0 for a blank.

The score is the share of blank cells that are right, as in d1 and d-OPSD. published: fenced digits
in <answer>, what follows <answer>, what follows </answer>, then any 16 digits. strict: 16 digits in
a closed <answer>.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.core.types import Cell, Problem, Score
from dopsd.tasks.common.answers import closed, score_by_rule
from dopsd.tasks.common.asking import AskingTask, no_longer_than
from dopsd.tasks.common.rows import stream
from dopsd.tasks.common.sources import Row, read_file, text_of

if TYPE_CHECKING:
    from dopsd.tasks.sudoku.config import SudokuConfig

SIZE = 4
CELLS = SIZE * SIZE
DIGITS = "1234"
INSTRUCTIONS = """Fill in a 4x4 Sudoku. It is given as 16 characters, row after row, with 0 for an empty cell.
Every row, every column and every 2x2 box must hold each of 1, 2, 3 and 4 once.
Think inside <reasoning></reasoning>, then give all 16 digits of the finished grid, without spaces, inside <answer></answer>.

Puzzle: {puzzle}"""  # noqa: E501
PUZZLE = re.compile(r"[0-4]{16}")
FENCED = re.compile(r"```([\d\s]+)```")
STOPS = r"<\|(?:eot_id|im_end|role_end|endoftext)\|>"  # of LLaDA, Qwen and LLaDA-MoE
STOP = re.compile(STOPS)
CLOSED_OR_STOP = re.compile(f"{STOPS}|</answer>")
DIGITS_BEFORE_CLOSE = re.compile(r"(\d{16})\s*</answer>")
ANY_DIGITS = re.compile(r"\b(\d{16})\b")


def peers(cell: int) -> set[int]:
    """Return the cells that share a row, a column or a box with this one."""
    row, column = divmod(cell, SIZE)
    related = {c for c in range(CELLS) if c // SIZE == row or c % SIZE == column}
    related |= {c for c in range(CELLS) if c // 8 == row // 2 and (c % SIZE) // 2 == column // 2}
    return related - {cell}


PEERS = [peers(cell) for cell in range(CELLS)]


def _choices(grid: str, cell: int) -> list[str]:
    """Return the digits that the blank cell can take."""
    used = {grid[other] for other in PEERS[cell]}
    return [digit for digit in DIGITS if digit not in used]


def solutions(grid: str, limit: int = 2) -> list[str]:
    """Return up to `limit` solutions, in digit order.

    The search is depth-first, on the blank cell with the fewest choices.
    """
    blanks = [cell for cell in range(CELLS) if grid[cell] == "0"]
    if not blanks:
        return [grid]
    cell = min(blanks, key=lambda c: len(_choices(grid, c)))
    solved: list[str] = []
    for digit in _choices(grid, cell):
        solved += solutions(grid[:cell] + digit + grid[cell + 1 :], limit - len(solved))
        if len(solved) >= limit:
            break
    return solved


def is_valid(grid: str) -> bool:
    """Return whether the grid is complete, with each digit once in every row, column and box."""
    is_full = len(grid) == CELLS and set(grid) <= set(DIGITS)
    return is_full and all(
        grid[cell] not in {grid[c] for c in PEERS[cell]} for cell in range(CELLS)
    )


@cache
def all_grids() -> tuple[str, ...]:
    """Return the 288 solution grids."""
    return tuple(solutions("0" * CELLS, limit=288))


def make_puzzle(grid: str, blanks: int, rng: random.Random) -> str:
    """Return a puzzle with this grid as its only solution.

    Args:
        blanks: number of blank cells, at most 12.
    """
    for _ in range(1000):
        hidden = set(rng.sample(range(CELLS), blanks))
        puzzle = "".join("0" if cell in hidden else digit for cell, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1:
            return puzzle
    raise Code.TOO_FEW_PROBLEMS.error(
        f"data.sudoku.blanks: found no puzzle with {blanks} blanks and one solution; use fewer"
    )


def make_split(grids: list[str], count: int, blanks: int, rng: random.Random) -> list[Problem]:
    """Return `count` distinct puzzles, spread evenly over the grids."""
    problems: dict[str, Problem] = {}
    for grid in itertools.islice(itertools.cycle(grids), 50 * count):
        puzzle = make_puzzle(grid, blanks, rng)
        problems.setdefault(puzzle, Problem(f"sudoku-{puzzle}", puzzle, grid))
        if len(problems) == count:
            return list(problems.values())
    raise Code.TOO_FEW_PROBLEMS.error(
        f"data.sudoku: found only {len(problems)} distinct puzzles of {count} in {len(grids)}"
        " grids; ask for fewer puzzles, or more grids"
    )


def keeps_givens(puzzle: str, grid: str) -> bool:
    """Return whether the grid has every digit of the puzzle at its cell."""
    return all(given in ("0", digit) for given, digit in zip(puzzle, grid, strict=True))


def blanks_right(problem: Problem, answer: str | None) -> float:
    """Return the share of blank cells that the answer fills correctly."""
    if answer is None:
        return 0.0
    blanks = [cell for cell in range(CELLS) if problem.prompt[cell] == "0"]
    return sum(answer[cell] == problem.answer[cell] for cell in blanks) / len(blanks)


def cells(problem: Problem, text: str, answer: str) -> list[list[Cell]] | None:
    """Return the cells of an answer, row by row; None unless the text has its 16 digits."""
    first = text.find(answer, max(text.find("<answer>"), 0))
    if first < 0 or len(answer) != CELLS or not (answer.isascii() and answer.isdigit()):
        return None
    row_of_cells = [
        Cell(start, start + 1, given != "0", text[start] == digit)
        for start, given, digit in zip(
            range(first, first + CELLS), problem.prompt, problem.answer, strict=True
        )
    ]
    return [row_of_cells[row : row + SIZE] for row in range(0, CELLS, SIZE)]


def _fill_row(row: str) -> str:
    missing = iter([digit for digit in DIGITS if digit not in row])
    return "".join(digit if digit != "0" else next(missing) for digit in row)


def read_published(path: Path, count: int) -> list[Problem]:
    """Read a published test file with the columns Puzzle and Solution.

    Args:
        count: number of rows to draw, with numpy's RandomState(42) as in the published code.
    """
    import numpy

    rows = [_published_problem(row) for row in read_file(path, "data.sudoku.test_file")]
    if len(rows) < count:
        raise Code.TOO_FEW_PROBLEMS.error(
            f"{path}: {len(rows)} puzzles, but data.sudoku.test is {count}; lower data.sudoku.test"
        )
    if repeated := len(rows) - len({p.prompt for p in rows}):
        log(f"sudoku: {repeated} of {len(rows)} rows of {path} repeat a puzzle, and count each")
    return [rows[i] for i in numpy.random.RandomState(42).choice(len(rows), count, replace=False)]


def _published_problem(row: Row) -> Problem:
    puzzle, grid = text_of(row, "Puzzle"), text_of(row, "Solution")
    expected = _fault(puzzle, grid)
    if expected:
        raise Code.SOURCE_ROW.error(f"{row.place}: expected {expected}")
    return Problem(f"sudoku-{row.number}-{puzzle}", puzzle, grid)


def _fault(puzzle: str, grid: str) -> str | None:
    """Return what a puzzle should have, and what was found; None if it is sound."""
    if not PUZZLE.fullmatch(puzzle) or "0" not in puzzle:
        return f"a puzzle of 16 digits 0-4 with some 0 for blanks, found {puzzle[:40]!r}"
    if not is_valid(grid) or not keeps_givens(puzzle, grid):
        return f"a solved 4x4 grid that keeps the puzzle's digits, found {grid[:40]!r}"
    return None


def _candidates(text: str) -> Iterator[str]:
    """Yield possible answers in the order of the published scorer; each search is one pass."""
    opening, closing = text.find("<answer>"), text.find("</answer>")
    if opening >= 0:
        start = opening + len("<answer>")
        if fenced := FENCED.search(text, start):
            yield fenced[1]
        if stop := CLOSED_OR_STOP.search(text, start):
            yield text[start : stop.start()]
    if closing >= 0:
        yield STOP.split(text[closing + len("</answer>") :], maxsplit=1)[0]
    for pattern in (DIGITS_BEFORE_CLOSE, ANY_DIGITS):
        if match := pattern.search(text):
            yield match[1]


def extract(text: str) -> str | None:
    """Return the answer by the published rule: no white space, padded with 0 or cut to 16."""
    candidates = (re.sub(r"\s", "", candidate) for candidate in _candidates(text))
    return next((answer.ljust(CELLS, "0")[:CELLS] for answer in candidates if answer), None)


def extract_strict(text: str) -> str | None:
    """Return the 16 digits in a closed <answer>, or None."""
    answer = re.sub(r"\s", "", closed(text, "answer") or "")
    return answer if re.fullmatch("[0-9]{16}", answer) else None


class Sudoku(AskingTask):
    """The task 4x4 Sudoku: graded, so all attempts are sampled and the best is kept."""

    name = "sudoku"
    graded = True
    instructions = INSTRUCTIONS
    config: SudokuConfig

    def build(self) -> dict[str, list[Problem]]:
        """Return train, validation and test, disjoint by solution grid, also of a test file."""
        c = self.config
        grids = list(all_grids())
        stream(self.name, "grids", c.seed).shuffle(grids)
        test = read_published(Path(c.test_file), c.test) if c.test_file else []
        if test:
            grids = [grid for grid in grids if grid not in {p.answer for p in test}]
        else:
            test, grids = self.held_out("test", grids, c.test_grids)
        validation, grids = self.held_out("validation", grids, c.validation_grids)
        train, _ = self.held_out("train", grids, len(grids))
        return no_longer_than(c.limit, {"train": train, "validation": validation, "test": test})

    def held_out(
        self, split: str, grids: list[str], number: int
    ) -> tuple[list[Problem], list[str]]:
        """Return a split, and the grids that are left for others."""
        c = self.config
        count = {"train": c.train, "validation": c.validation, "test": c.test}[split]
        rng = stream(self.name, split, c.seed)
        return make_split(grids[:number], count, c.blanks, rng), grids[number:]

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        return _fault(problem.prompt, problem.answer)

    def ask(self, text: str) -> Problem:
        """Return the puzzle that a person typed, with its solution."""
        solved = solutions(text) if PUZZLE.fullmatch(text) else []
        if not solved or "0" not in text:
            expected = "16 digits 0-4 with some 0 for blanks, which can be solved"
            raise Code.PROBLEM_TEXT.error(f"puzzle {text!r}: expected {expected}")
        return Problem(f"sudoku-{text}", text, solved[0])

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a row in a file of generations."""
        puzzle = PUZZLE.search(question)
        text = puzzle[0] if puzzle else question
        is_plain = isinstance(ground_truth, str | int)
        expected = _fault(text, str(ground_truth) if is_plain else "another kind of value")
        if expected:
            raise Code.GENERATIONS_ROW.error(f"expected {expected}")
        return Problem(f"sudoku-{text}", text, str(ground_truth))

    def question(self, problem: Problem) -> str:
        """Return the puzzle in the words of the published prompts."""
        return f"Solve the following Sudoku puzzle: {problem.prompt}\n"

    def instructed(self, problem: Problem) -> str:
        """Return the task's own instructions with the puzzle."""
        return INSTRUCTIONS.format(puzzle=problem.prompt)

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and the share of blank cells that are right.

        The figure `valid_grid` is 1 for any solved grid that keeps the givens: some puzzles have
        several.
        """
        answers = extract(text), extract_strict(text)
        pairs = [(answer, blanks_right(problem, answer)) for answer in answers]
        answer = pairs[self.config.scoring == "strict"][0]
        is_solved = answer is not None and is_valid(answer) and keeps_givens(problem.prompt, answer)
        return score_by_rule(self.config.scoring, *pairs, valid_grid=float(is_solved))

    def answer_text(self, problem: Problem) -> str:
        """Return the 16 digits of the solution."""
        return problem.answer

    def grid(self, problem: Problem, text: str) -> list[list[Cell]] | None:
        """Return the cells of the answer that is scored; None unless it is 16 digits in a row."""
        answer = self.verify(problem, text).answer or ""
        return cells(problem, text, answer)

    def worked_solution(self, problem: Problem, is_careful: bool) -> str:
        """Return the grid row by row as reasoning, then the answer.

        Args:
            is_careful: False: fill each row with its missing digits in rising order, without
                checking columns or boxes.
        """
        grid = problem.answer
        if not is_careful:
            rows = [problem.prompt[start : start + SIZE] for start in range(0, CELLS, SIZE)]
            grid = "".join(map(_fill_row, rows))
        return f"<reasoning>{grid}</reasoning><answer>{grid}</answer>"


def make(config: SudokuConfig) -> Sudoku:
    """Return the task with its settings."""
    return Sudoku(config)
