"""load_params(): params.yaml read and checked; every fault is one line that names the key's full path."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML, YAMLError

from dopsd.config import Params, Section, Source
from dopsd.errors import DopsdError

FILES = (".jsonl", ".json", ".csv", ".parquet")


def _line(fault: Any, path: Path | str) -> str:
    """One pydantic fault as `file: full.key: what was expected, what came`."""
    key = ".".join(str(part) for part in fault["loc"]) or "(several keys)"
    if fault["type"] == "extra_forbidden":
        return f"{path}: {key}: unknown key; {_nearest(fault['loc'])}"
    message = fault["msg"].removeprefix("Value error, ")
    came = "" if fault["type"] in ("value_error", "missing") else f", found {fault['input']!r}"
    return f"{path}: {key}: {message}{came}"


def _nearest(place: tuple[Any, ...]) -> str:
    """The key of the same section that was probably meant, or those that there are."""
    section: Any = Params
    for part in place[:-1]:
        field = section.model_fields.get(part)
        section = field.annotation if field else None
        if not isinstance(section, type) or not issubclass(section, Section):
            return "see the comments in params.yaml for those that exist"
    near = get_close_matches(str(place[-1]), section.model_fields, 1)
    return f"did you mean {near[0]}?" if near else f"there is {', '.join(section.model_fields)}"


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml; every fault is one line that names the key's full path."""
    if not path.is_file():
        raise DopsdError(f"{path}: no such file; run from the project's root, where params.yaml is")
    return checked(read_yaml(path), path)


def read_yaml(path: Path) -> Any:
    """YAML 1.2, as DVC reads it: 1e-3 is a number."""
    try:
        found = YAML(typ="safe", pure=True).load(path.read_text())
    except (YAMLError, UnicodeDecodeError) as error:
        raise DopsdError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise DopsdError(
            f"{path}: expected sections by name, found {type(found).__name__}; `dopsd params --profile embedded` "
            "writes a whole one, after the old one is removed"
        )
    return found


def missing_files(params: Params) -> list[str]:
    """Files that the matrix's tasks and the model are to be read from and that are not here, as `key: file`."""
    named = {}
    for task in params.matrix.tasks:
        section = params.model_dump()["data"][task]
        named |= {f"data.{task}.{key}": section[key] for key in ("prompt_file", "test_file") if section.get(key)}
        for split in ("train", "test"):
            if isinstance(section[split], dict) and Path(section[split]["path"]).suffix in FILES:
                named[f"data.{task}.{split}.path"] = section[split]["path"]
    for method in params.matrix.methods:
        for key, value in vars(vars(params.method)[method]).items():
            if isinstance(value, Source) and Path(value.path).suffix in FILES:
                named[f"method.{method}.{key}.path"] = value.path
    if not params.pretrain.tasks:
        named["model.path"] = f"{params.model.path}/config.json"
    return [f"{key}: {file}" for key, file in named.items() if not Path(file).is_file()]


def checked(raw: Any, path: Path | str) -> Params:
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        raise DopsdError("\n".join(_line(fault, path) for fault in error.errors())) from error
