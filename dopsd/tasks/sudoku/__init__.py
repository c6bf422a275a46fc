"""4x4 Sudoku: fill in the blanks (0) of a grid; the score is the share of right blanks."""
