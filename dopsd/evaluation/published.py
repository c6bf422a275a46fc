"""Published results, to lay beside our own: dopsd/evaluation/published.yaml."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML


def published() -> dict[str, Any]:
    """Published accuracies to stand beside one's own."""
    text = files("dopsd.evaluation").joinpath("published.yaml").read_text()
    accuracies: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return accuracies
