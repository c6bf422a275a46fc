"""load_params(): params.yaml read and checked; every fault is one line that names the key's full path."""

from __future__ import annotations

import os
import re
import warnings
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor

from dopsd.config.params import Params
from dopsd.core.errors import DopsdError, is_unicode
from dopsd.core.settings import Section
from dopsd.tasks.common.config import Source

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from ruamel.yaml.nodes import MappingNode

FILES = (".jsonl", ".json", ".csv", ".parquet")
LONGEST, MARKS = (
    65536,
    10_000,
)  # characters of settings, and commas, colons, brackets and lines: a second to read at most
DEEPEST = 32  # sections in sections
VALUES = 10_000  # with what aliases repeat
SHOWN = 20  # faults; the rest is counted


def _line(fault: ErrorDetails, path: Path | str) -> str:
    """One pydantic fault as `file: full.key: what was expected, what came`."""
    key = ".".join(str(part) for part in fault["loc"]) or "(several keys)"
    if fault["type"] == "extra_forbidden":
        return f"{path}: {key}: unknown key; {_nearest(fault['loc'])}"
    message = fault["msg"].removeprefix("Value error, ")
    received = (
        "" if fault["type"] in ("value_error", "missing") else f", found {fault['input']!r:.200}"
    )
    return f"{path}: {key}: {message}{received}"


def _nearest(key_path: tuple[Any, ...]) -> str:
    """The key of the same section that was probably meant, or those that there are."""
    section: Any = Params
    for part in key_path[:-1]:
        field = section.model_fields.get(part)
        section = field.annotation if field else None
        if not isinstance(section, type) or not issubclass(section, Section):
            return "see the comments in params.yaml for those that exist"
    matches = get_close_matches(str(key_path[-1])[:80], section.model_fields, 1)
    return (
        f"did you mean {matches[0]}?" if matches else f"there is {', '.join(section.model_fields)}"
    )


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml; every fault is one line that names the key's full path."""
    if not path.is_file():
        raise DopsdError(f"{path}: no such file; run from the project's root, where params.yaml is")
    return checked(read_yaml(path), path)


def read_yaml(path: Path) -> dict[str, Any]:
    """YAML 1.2, as DVC reads it: 1e-3 is a number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DopsdError(f"{path}: not valid YAML: not a text in UTF-8 ({error})") from error
    settings = parse_yaml(text, f"{path}: not valid YAML")
    if not isinstance(settings, dict):
        raise DopsdError(
            f"{path}: expected sections by name, found {type(settings).__name__}; `dopsd params --profile embedded` "
            "writes a whole one, after the old one is removed"
        )
    return settings


class Unmerged(SafeConstructor):
    """Without merge keys: a few of them make millions of values."""

    def flatten_mapping(self, node: MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise ValueError("merge keys (<<) are not read; write the keys out")


def parse_yaml(text: str, fault: str) -> Any:  # noqa: ANN401  # any YAML value
    """The value of a YAML text within bounds of size, depth and time; `fault` begins the line that refuses it."""
    if len(text) > LONGEST or sum(map(text.count, ",:[]{}\n")) > MARKS:
        raise DopsdError(
            f"{fault}: longer than {LONGEST} characters, or than {MARKS} values and lines"
        )
    if _brackets(text) > DEEPEST:
        raise DopsdError(f"{fault}: more than {DEEPEST} brackets are open")
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = Unmerged
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an anchor is used again
            value = reader.load(text)
    except (
        Exception
    ) as error:  # for odd numbers, dates and keys the YAML reader raises what its parts raise
        reason = "too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise DopsdError(f"{fault}: {reason}") from error
    _check_size(value, fault)
    return value


def _brackets(text: str) -> int:
    """How deep brackets are nested, those in quotes and comments counted too: the YAML reader's time grows with the square."""
    return max(
        accumulate((1 if mark in "[{" else -1 for mark in re.findall(r"[\[\]{}]", text)), initial=0)
    )


def _check_size(value: object, fault: str) -> None:
    """Refuse what aliases blow up, or close to a circle; and texts that no file can hold."""
    pending, count = [(value, 0)], 0
    while pending:
        item, depth = pending.pop()
        children = (
            [*item, *item.values()]
            if isinstance(item, dict)
            else item
            if isinstance(item, list | tuple | set)
            else []
        )
        count += 1
        if isinstance(item, str) and not is_unicode(item):
            raise DopsdError(f"{fault}: half a character (a lone surrogate) in {item[:40]!r}")
        pending += [(child, depth + 1) for child in children]
        if depth > DEEPEST or count + len(pending) > VALUES:
            raise DopsdError(
                f"{fault}: more than {DEEPEST} levels, or than {VALUES} values with those that aliases repeat"
            )


def missing_files(params: Params) -> list[str]:
    """Files that the matrix's tasks and the model are to be read from and that are not here, as `key: file`."""
    files: dict[str, str] = {}
    for task in params.matrix.tasks:
        section = params.model_dump()["data"][task]
        files |= {
            f"data.{task}.{key}": section[key]
            for key in ("prompt_file", "test_file")
            if section.get(key)
        }
        for split in ("train", "test"):
            if isinstance(section[split], dict) and Path(section[split]["path"]).suffix in FILES:
                files[f"data.{task}.{split}.path"] = section[split]["path"]
    for method in params.matrix.methods:
        for key, value in vars(vars(params.method)[method]).items():
            if isinstance(value, Source) and Path(value.path).suffix in FILES:
                files[f"method.{method}.{key}.path"] = value.path
    if not params.pretrain.tasks:
        files["model.path"] = f"{params.model.path}/config.json"
    return [
        f"{key}: {file}"
        for key, file in files.items()
        if not os.path.isfile(file)  # noqa: PTH113
    ]  # also of a name too long for a disk


def checked(raw: object, path: Path | str) -> Params:
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        faults = error.errors()
        more = [f"{path}: and {len(faults) - SHOWN} other faults"] if len(faults) > SHOWN else []
        raise DopsdError([_line(fault, path) for fault in faults[:SHOWN]] + more) from error
