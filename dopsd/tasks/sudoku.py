"""4x4 Sudoku: all 288 grids, puzzles with one solution, splits disjoint by grid, and a graded verifier.

A puzzle is 16 digits read row by row, 0 for a blank. The score is the share of blank cells that are right
(method notes, section 4; d1 and d-OPSD score so).
"""

from __future__ import annotations

import csv
import itertools
import random
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.errors import DopsdError
from dopsd.tasks.answers import inside
from dopsd.tasks.storage import DATA, read_problems
from dopsd.types import Problem, Verdict

if TYPE_CHECKING:
    from dopsd.config import SudokuData

SIZE = 4
CELLS = SIZE * SIZE
DIGITS = "1234"
INSTRUCTIONS = """Fill in a 4x4 Sudoku. It is given as 16 characters, row after row, with 0 for an empty cell.
Every row, every column and every 2x2 box must hold each of 1, 2, 3 and 4 once.
Think inside <reasoning></reasoning>, then give all 16 digits of the finished grid, without spaces, inside <answer></answer>.

Puzzle: {puzzle}"""


def peers(cell: int) -> set[int]:
    """Cells that share a row, a column or a box with this one."""
    row, column = divmod(cell, SIZE)
    same = {c for c in range(CELLS) if c // SIZE == row or c % SIZE == column}
    same |= {c for c in range(CELLS) if c // 8 == row // 2 and (c % SIZE) // 2 == column // 2}
    return same - {cell}


PEERS = [peers(cell) for cell in range(CELLS)]


def choices(grid: str, cell: int) -> list[str]:
    used = {grid[other] for other in PEERS[cell]}
    return [digit for digit in DIGITS if digit not in used]


def solutions(grid: str, limit: int = 2) -> list[str]:
    """Up to `limit` solutions, in digit order, by depth-first search on the tightest blank cell."""
    blanks = [cell for cell in range(CELLS) if grid[cell] == "0"]
    if not blanks:
        return [grid]
    cell = min(blanks, key=lambda c: len(choices(grid, c)))
    found: list[str] = []
    for digit in choices(grid, cell):
        found += solutions(grid[:cell] + digit + grid[cell + 1 :], limit - len(found))
        if len(found) >= limit:
            break
    return found


def is_valid(grid: str) -> bool:
    """A complete grid in which every row, column and box holds each digit once."""
    full = len(grid) == CELLS and set(grid) <= set(DIGITS)
    return full and all(grid[cell] not in {grid[c] for c in PEERS[cell]} for cell in range(CELLS))


@cache
def all_grids() -> tuple[str, ...]:
    """The 288 solution grids."""
    return tuple(solutions("0" * CELLS, limit=288))


def make_puzzle(grid: str, blanks: int, draw: random.Random) -> str:
    """A puzzle with this grid as its only solution."""
    for _ in range(1000):
        hidden = set(draw.sample(range(CELLS), blanks))
        puzzle = "".join("0" if cell in hidden else digit for cell, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1:
            return puzzle
    raise DopsdError(f"data.sudoku.blanks: {blanks} blanks leave no puzzle with one solution; use at most 12")


def make_split(grids: list[str], count: int, blanks: int, draw: random.Random) -> list[Problem]:
    """Distinct puzzles, spread evenly over the grids."""
    found: dict[str, Problem] = {}
    for grid in itertools.islice(itertools.cycle(grids), 50 * count):
        puzzle = make_puzzle(grid, blanks, draw)
        found.setdefault(puzzle, Problem(f"sudoku-{puzzle}", puzzle, grid))
        if len(found) == count:
            return list(found.values())
    raise DopsdError(f"data.sudoku: only {len(found)} distinct puzzles from {len(grids)} grids, {count} were asked for")


def worked_solution(problem: Problem, is_careful: bool) -> str:
    """The grid row by row as reasoning, then the answer.

    Careless writers have a habit: they fill each row with its missing digits in rising order and look no further.
    """
    rows = [problem.answer[start : start + SIZE] for start in range(0, CELLS, SIZE)]
    if not is_careful:
        rows = [_fill_row(problem.prompt[start : start + SIZE]) for start in range(0, CELLS, SIZE)]
    return f"<reasoning>{''.join(rows)}</reasoning><answer>{''.join(rows)}</answer>"


def _fill_row(row: str) -> str:
    missing = iter([digit for digit in DIGITS if digit not in row])
    return "".join(digit if digit != "0" else next(missing) for digit in row)


def read_published(path: Path, count: int) -> list[Problem]:
    """Rows of a published test file (columns Puzzle, Solution): all, or the `count` drawn by RandomState(42)."""
    import numpy

    if not path.is_file():
        raise DopsdError(f"data.sudoku.test_file: {path} is not a file; expected a csv with columns Puzzle,Solution")
    try:
        lines = list(csv.reader(path.read_text().splitlines()))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DopsdError(f"{path}: not a csv in UTF-8 ({error})") from error
    if not lines or lines[0] != ["Puzzle", "Solution"]:
        raise DopsdError(f"{path}:1: expected the header Puzzle,Solution")
    rows = [_read_row(path, number, row) for number, row in enumerate(lines[1:], 2)]
    if len(rows) < count:
        raise DopsdError(f"{path}: {len(rows)} puzzles, data.sudoku.test asks for {count}")
    return [rows[i] for i in numpy.random.RandomState(42).choice(len(rows), count, replace=False)]


def _read_row(path: Path, number: int, row: list[str]) -> Problem:
    why = fault(*row) if len(row) == 2 else f"two columns, found {len(row)}"
    if why:
        raise DopsdError(f"{path}:{number}: expected {why}")
    return Problem(f"sudoku-{number}-{row[0]}", row[0], row[1])


def fault(puzzle: str, grid: str) -> str | None:
    """What was expected of a puzzle and its solution and is not there, or None."""
    if not re.fullmatch(r"[0-4]{16}", puzzle) or "0" not in puzzle:
        return f"a puzzle of 16 digits 0-4 with some 0 for blanks, found {puzzle[:40]!r}"
    if not is_valid(grid) or any(a not in ("0", b) for a, b in zip(puzzle, grid, strict=True)):
        return f"a solved 4x4 grid that keeps the puzzle's digits, found {grid[:40]!r}"
    return None


PATTERNS = (  # where an answer is looked for, in the published scorer's order
    re.compile(r"<answer>.*?```\s*([\d\s]+?)\s*```", re.DOTALL),
    re.compile(r"<answer>(.*?)(?:<\|eot_id\|>|<\|endoftext\|>|</answer>)", re.DOTALL),
    re.compile(r"</answer>\s*(.*?)(?:<\|eot_id\|>|<\|endoftext\|>|$)", re.DOTALL),
    re.compile(r"(\d{16})\s*</answer>"),
    re.compile(r"\b(\d{16})\b"),
)


def extract(text: str) -> str | None:
    """The answer string of a generation: white space dropped, padded with 0 or cut to 16 characters."""
    for pattern in PATTERNS:
        match = pattern.search(text)
        if match and match.group(1).strip():
            return re.sub(r"\s", "", match.group(1)).ljust(CELLS, "0")[:CELLS]
    return None


class Sudoku:
    """The task: graded, so that all attempts are sampled and the best is kept."""

    name = "sudoku"
    graded = True

    def __init__(self, config: SudokuData, is_strict: bool = False) -> None:
        self.config = config
        self.is_strict = is_strict

    def build(self) -> dict[str, list[Problem]]:
        """train, validation and test, disjoint by solution grid; with a test file, the others keep off its grids."""
        c = self.config
        draw = random.Random(c.seed)
        grids = list(all_grids())
        draw.shuffle(grids)
        if c.test_file:
            test = read_published(Path(c.test_file), c.test)
            grids = [grid for grid in grids if grid not in {p.answer for p in test}]
        else:
            test = make_split(grids[: c.test_grids], c.test, c.blanks, draw)
            grids = grids[c.test_grids :]
        validation = make_split(grids[: c.validation_grids], c.validation, c.blanks, draw)
        train = make_split(grids[c.validation_grids :], c.train, c.blanks, draw)
        return {"train": train, "validation": validation, "test": test}

    def load(self, split: str) -> list[Problem]:
        return read_problems(DATA / self.name / f"{split}.jsonl", fault)

    def ask(self, puzzle: str) -> Problem:
        """A puzzle typed by a person, with its solution."""
        found = solutions(puzzle) if re.fullmatch(r"[0-4]{16}", puzzle) else []
        if not found or "0" not in puzzle:
            raise DopsdError(f"puzzle {puzzle!r}: expected 16 digits 0-4 with some 0 for blanks, and a solution")
        return Problem(f"sudoku-{puzzle}", puzzle, found[0])

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]:
        """style: `compact` is the 16 digits alone, `instructions` explains the puzzle to a language model."""
        text = problem.prompt if style == "compact" else INSTRUCTIONS.format(puzzle=problem.prompt)
        return [{"role": "user", "content": text}]

    def verify(self, problem: Problem, text: str) -> Verdict:
        answer = inside(text, "answer", CELLS) if self.is_strict else extract(text)
        if answer is None:
            return Verdict(None, 0.0, False)
        blanks = [cell for cell in range(CELLS) if problem.prompt[cell] == "0"]
        score = sum(answer[cell] == problem.answer[cell] for cell in blanks) / len(blanks)
        return Verdict(answer, score, score == 1.0)

    def reward(self, problem: Problem, text: str) -> float:
        return self.verify(problem, text).score

    def worked_solution(self, problem: Problem, is_careful: bool) -> str:
        return worked_solution(problem, is_careful)
