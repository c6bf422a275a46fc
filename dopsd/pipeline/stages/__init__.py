"""Stages: one file each, with the name that dvc.yaml and the command line use."""

from __future__ import annotations
