"""4x4 Sudoku."""
