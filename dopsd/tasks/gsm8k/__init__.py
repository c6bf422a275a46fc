"""GSM8K: grade-school mathematics."""

RECIPE = 3  # strict scoring takes no part of an expression, nor 5 of `5 million`, for the number
