"""Rows of data with a prompt and a verifier, defined in params.yaml."""
