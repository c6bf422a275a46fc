"""Rows of data with a prompt and a verifier, defined in params.yaml."""

RECIPE = 5  # programs are found by what tests use; numbers of JSON are compared exactly
