"""Load, check and write params.yaml."""
