"""Prefect flows: the second door. The stages are those of dvc.yaml; nothing is computed here."""
