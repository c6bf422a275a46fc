"""Countdown: reach a number with arithmetic."""
