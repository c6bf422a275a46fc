"""Rows of data with a prompt and a verifier, defined in params.yaml."""

RECIPE = 2  # verifiers take no part of an expression, a hedge or a superscript for the answer
