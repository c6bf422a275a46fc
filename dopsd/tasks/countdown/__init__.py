"""Countdown: reach a number with arithmetic."""

RECIPE = 3  # chosen operators, and training problems in any order of their numbers
