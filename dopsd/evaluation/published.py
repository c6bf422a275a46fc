"""Published results, to lay beside our own: dopsd/evaluation/published.yaml."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML


def published() -> dict[str, Any]:
    """Published accuracies to stand beside one's own."""
    return YAML(typ="safe", pure=True).load(
        files("dopsd.evaluation").joinpath("published.yaml").read_text()
    )
