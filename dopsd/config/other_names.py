"""Names of methods that settings of an algorithm make, from other_names.yaml in its folder."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Sequence


def other_names() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the algorithm, and what is set in its section, by the name that this has."""
    reader = YAML(typ="safe", pure=True)
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for algorithm, package in ALGORITHMS.packages.items():
        path = files(package) / "other_names.yaml"
        names = reader.load(path.read_text()) if path.is_file() else {}
        found |= {name: (algorithm, settings) for name, settings in names.items()}
    return found


def unknown_method(key: str, name: str, known: Sequence[str]) -> str:
    """Return the line that refuses a method, and says which settings of another one make it.

    Args:
        key: where the name was found, such as `--method`.
        name: the name.
        known: the methods that exist.
    """
    plain = name.lower().replace("-", "_")
    algorithm, settings = other_names().get(plain, ("", {}))
    if not algorithm:
        return unknown(f"{key} {name}", known)
    values = ", ".join(f"{setting} {value}" for setting, value in settings.items())
    is_own = ALGORITHMS.packages[algorithm].startswith(f"{ALGORITHMS.package}.")
    page = f": docs/algorithms/{algorithm}.md" if is_own else ""
    return f"{key} {name}: is method {algorithm} with {values}{page}"
