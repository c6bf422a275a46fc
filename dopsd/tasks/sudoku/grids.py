"""4x4 Sudoku: all 288 grids, their puzzles with one solution, and splits over grids.

A puzzle is 16 digits read row by row, 0 for a blank.
"""

import itertools
import random
from functools import cache

from dopsd.core.errors import Code
from dopsd.core.types import Cell, Problem

SIZE = 4
CELLS = SIZE * SIZE
DIGITS = "1234"


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
    """Return the cells of an answer, row by row; None unless it is 16 digits in a row in the text.

    Args:
        answer: the answer that was extracted from it.
    """
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
