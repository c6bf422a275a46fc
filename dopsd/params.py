"""load_params(): params.yaml read and checked; every fault is one line that names the key's full path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML, YAMLError

from dopsd.config import Params
from dopsd.errors import DopsdError


def _line(fault: Any, path: Path) -> str:
    """One pydantic fault as `file: full.key: what was expected, what came`."""
    key = ".".join(str(part) for part in fault["loc"]) or "(several keys)"
    if fault["type"] == "extra_forbidden":
        return f"{path}: {key}: unknown key; see the comments in params.yaml for those that exist"
    message = fault["msg"].removeprefix("Value error, ")
    came = "" if fault["type"] in ("value_error", "missing") else f", found {fault['input']!r}"
    return f"{path}: {key}: {message}{came}"


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml; every fault is one line that names the key's full path."""
    if not path.is_file():
        raise DopsdError(f"{path}: no such file; run from the project's root, where params.yaml is")
    return checked(read_yaml(path), path)


def read_yaml(path: Path) -> Any:
    """YAML 1.2, as DVC reads it: 1e-3 is a number."""
    try:
        return YAML(typ="safe", pure=True).load(path.read_text())
    except (YAMLError, UnicodeDecodeError) as error:
        raise DopsdError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def checked(raw: Any, path: Path) -> Params:
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        raise DopsdError("\n".join(_line(fault, path) for fault in error.errors())) from error
