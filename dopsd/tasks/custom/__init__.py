"""Rows of data with a prompt and a verifier, defined in params.yaml."""

RECIPE = 4  # typed fractions are read with a point where `decimal` is a comma
