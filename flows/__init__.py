"""Prefect flows: they run the stages of dvc.yaml, and compute nothing themselves."""
