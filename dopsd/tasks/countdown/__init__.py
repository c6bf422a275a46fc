"""Countdown: reach a number with arithmetic."""

RECIPE = 2  # the published rule reads a box that is written with a space
