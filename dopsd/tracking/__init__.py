"""Publish runs, models and dashboards to MLflow, and checkpoints to the Hugging Face hub."""
