"""The YAML files of the profiles: those of this folder, and those in the folders of algorithms."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from importlib.resources import files
from textwrap import indent
from typing import Any

from ruamel.yaml import YAML

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown

FOLDER = files("dopsd.config.profiles")
EMBEDDED, LLADA = "embedded.yaml", "llada-8b.yaml"


def _of_algorithms(file: str) -> dict[str, str]:
    """Return the text of this file in each algorithm's folder that has it, by algorithm."""
    paths = {name: files(package) / file for name, package in ALGORITHMS.packages.items()}
    return {name: path.read_text() for name, path in paths.items() if path.is_file()}


def _parsed(text: str) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return values


@cache
def embedded_text() -> str:
    """Return the profile `embedded` as text: its file, with the sections of the algorithms."""
    before, method, after = (FOLDER / EMBEDDED).read_text().partition("\nmethod:")
    comment, _, rest = after.partition("\n")
    sections = "".join(indent(text, "  ") for text in _of_algorithms(EMBEDDED).values())
    return f"{before}{method}{comment}\n{sections}{rest}"


@cache
def _embedded() -> dict[str, Any]:
    return _parsed(embedded_text())


@cache
def _llada() -> dict[str, Any]:
    layers = _parsed((FOLDER / LLADA).read_text())
    for name, text in _of_algorithms(LLADA).items():
        for kind, changes in _parsed(text).items():
            for choice, settings in changes.items():
                label = f"algorithm {name}: {LLADA}: {kind}.{choice}"
                known = [f"{k}.{c}" for k in ("tasks", "presets") for c in layers[k]]
                if f"{kind}.{choice}" not in known:
                    raise DopsdError(unknown(label, known), code=Code.PLUGIN_BROKEN)
                layers[kind][choice].setdefault("method", {})[name] = settings
    return layers


def embedded() -> dict[str, Any]:
    """Return a copy of the settings of the profile `embedded`."""
    return deepcopy(_embedded())


def llada() -> dict[str, Any]:
    """Return a copy of the layers of the profiles of LLaDA-8B.

    Raises:
        DopsdError: if an algorithm's file names a task or a preset that does not exist.
    """
    return deepcopy(_llada())
