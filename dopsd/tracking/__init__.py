"""MLflow: runs, models, dashboards."""
