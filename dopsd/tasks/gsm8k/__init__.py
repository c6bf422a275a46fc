"""GSM8K: grade-school mathematics."""

RECIPE = 2  # strict scoring takes no part of an expression for the number
