"""Stages: one file each, with the name that dvc.yaml and the command line use."""
