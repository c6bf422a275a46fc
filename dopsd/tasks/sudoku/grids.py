"""4x4 Sudoku grids and puzzles: all 288 grids, their puzzles with one solution, and problems spread
over grids.

A puzzle is 16 digits read row by row, 0 for a blank.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem

if TYPE_CHECKING:
    import random

SIZE = 4
CELLS = SIZE * SIZE
DIGITS = "1234"


def peers(cell: int) -> set[int]:
    """Cells that share a row, a column or a box with this one."""
    row, column = divmod(cell, SIZE)
    related = {c for c in range(CELLS) if c // SIZE == row or c % SIZE == column}
    related |= {c for c in range(CELLS) if c // 8 == row // 2 and (c % SIZE) // 2 == column // 2}
    return related - {cell}


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
    solved: list[str] = []
    for digit in choices(grid, cell):
        solved += solutions(grid[:cell] + digit + grid[cell + 1 :], limit - len(solved))
        if len(solved) >= limit:
            break
    return solved


def is_valid(grid: str) -> bool:
    """A complete grid in which every row, column and box holds each digit once."""
    is_full = len(grid) == CELLS and set(grid) <= set(DIGITS)
    return is_full and all(
        grid[cell] not in {grid[c] for c in PEERS[cell]} for cell in range(CELLS)
    )


@cache
def all_grids() -> tuple[str, ...]:
    """The 288 solution grids."""
    return tuple(solutions("0" * CELLS, limit=288))


def make_puzzle(grid: str, blanks: int, rng: random.Random) -> str:
    """A puzzle with this grid as its only solution."""
    for _ in range(1000):
        hidden = set(rng.sample(range(CELLS), blanks))
        puzzle = "".join("0" if cell in hidden else digit for cell, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1:
            return puzzle
    raise DopsdError(
        f"data.sudoku.blanks: {blanks} blanks leave no puzzle with one solution; use at most 12"
    )


def make_split(grids: list[str], count: int, blanks: int, rng: random.Random) -> list[Problem]:
    """Distinct puzzles, spread evenly over the grids."""
    problems = draw_puzzles(grids, count, blanks, rng)
    if len(problems) < count:
        raise DopsdError(
            f"data.sudoku: only {len(problems)} distinct puzzles from {len(grids)} grids, {count}"
            " were asked for"
        )
    return problems


def draw_puzzles(grids: list[str], count: int, blanks: int, rng: random.Random) -> list[Problem]:
    """As many of `count` distinct puzzles as are soon found."""
    problems: dict[str, Problem] = {}
    for grid in itertools.islice(itertools.cycle(grids), 50 * count):
        puzzle = make_puzzle(grid, blanks, rng)
        problems.setdefault(puzzle, Problem(f"sudoku-{puzzle}", puzzle, grid))
        if len(problems) == count:
            break
    return list(problems.values())


def keeps_givens(puzzle: str, grid: str) -> bool:
    return all(given in ("0", digit) for given, digit in zip(puzzle, grid, strict=True))
