"""Evaluate adapters, and score generations from files."""

RECIPE = 2  # reports have the denoising steps that answers took
