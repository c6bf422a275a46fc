"""Published results for comparison, from dopsd/evaluation/published.yaml."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML


def published() -> dict[str, Any]:
    """Return the contents of published.yaml: accuracies in percent by method and task."""
    text = files("dopsd.evaluation").joinpath("published.yaml").read_text()
    accuracies: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return accuracies
