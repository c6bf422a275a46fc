"""Publish runs, models and dashboards to MLflow."""
