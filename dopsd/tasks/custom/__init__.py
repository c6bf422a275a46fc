"""Rows of data with a prompt and a verifier, defined in params.yaml."""

RECIPE = 3  # verifiers read full-width characters and Chinese texts, and no 5 of `5 million`
