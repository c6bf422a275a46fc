"""Verifiers of tasks that params.yaml defines, one file each."""
