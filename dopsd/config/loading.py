"""Read and check params.yaml.

Every error is one line that names the file, the full path of the key and what is wrong.
"""

import re
import warnings
from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from dopsd.config.params import Params
from dopsd.config.profiles.layers import completed
from dopsd.config.tasks import TasksConfig, with_named
from dopsd.core.errors import Code, DopsdError
from dopsd.core.settings import Section
from dopsd.tasks.registry import CUSTOM, FOLDERS, GYM, type_of

SHOWN = 20  # errors to print; the rest is counted


def _line(fault: ErrorDetails, path: Path | str, raw: object) -> str:
    """Format a pydantic error as `file: full.key: what was expected, what was found`.

    The message of an error of all sections together begins with a key itself.
    """
    key = ".".join(_written(fault["loc"], raw))
    if fault["type"] == "extra_forbidden":
        return f"{path}: {key}: unknown key; {nearest(fault['loc'])}"
    message = fault["msg"].removeprefix("Value error, ")
    received = (
        "" if fault["type"] in ("value_error", "missing") else f", found {fault['input']!r:.200}"
    )
    return f"{path}: {key}: {message}{received}" if key else f"{path}: {message}{received}"


def _written(key_path: tuple[int | str, ...], raw: Any) -> Iterator[str]:  # noqa: ANN401  # any YAML value
    """Yield the parts of a key, without the number of a single value that stands for a list."""
    for part in key_path:
        is_item = isinstance(raw, list) and isinstance(part, int)
        is_there = is_item or (isinstance(raw, dict) and part in raw)
        if is_there or isinstance(part, str):
            yield str(part)
            raw = raw[part] if is_there else None


def _code(fault: ErrorDetails) -> Code:
    """Return the code of a pydantic error; one of all sections together has no key."""
    if fault["type"] == "extra_forbidden":
        return Code.UNKNOWN_KEY
    return Code.WRONG_VALUE if fault["loc"] else Code.CONTRADICTION


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml."""
    if not path.is_file():
        raise Code.NO_SETTINGS_FILE.error(
            f"{path}: is no regular file; write the settings to one"
            if path.exists()
            else f"{path}: no such file; run from the project's root, where params.yaml is"
        )
    params = checked(read_yaml(path), path)
    params._file = path
    return params


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a settings file as YAML 1.2, as DVC does: 1e-3 is a number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Code.NOT_YAML.error(f"{path}: not valid YAML: not UTF-8 text ({error})") from error
    if re.search(r"^<{7} ", text, re.MULTILINE):
        raise Code.NOT_YAML.error(
            f"{path}: not valid YAML: marks of a conflict (<<<<<<<), which git left; keep one side"
        )
    settings = parse_yaml(text, f"{path}: not valid YAML")
    if not isinstance(settings, dict):
        raise Code.NOT_YAML.error(
            f"{path}: expected sections by name, found {type(settings).__name__}; remove the file"
            " and run `dopsd params --profile embedded` to write a complete one"
        )
    return settings


def parse_yaml(text: str, fault: str) -> Any:  # noqa: ANN401  # any YAML value
    """Parse a YAML text.

    Args:
        fault: the beginning of the error line, such as the file's name.
    """
    try:
        return deepcopy(_parsed(text))
    except Exception as error:  # the reader has no error class of its own for odd numbers and dates
        reason = "too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise Code.NOT_YAML.error(f"{fault}: {reason}") from error


@lru_cache(maxsize=16)
def _parsed(text: str) -> Any:  # noqa: ANN401  # any YAML value
    """Parse a text once: a command reads params.yaml several times, 40 ms and more each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an anchor may be used again
        return YAML(typ="safe", pure=True).load(text)


def checked(raw: object, path: Path | str) -> Params:
    """Check raw settings and return them as `Params`.

    Raises:
        DopsdError: with one line for each of the first errors, and the number of the others.
    """
    try:
        return Params.model_validate(with_named(completed(raw)))
    except ValidationError as error:
        raise _as_lines(error, path, raw) from error


def _as_lines(error: ValidationError, path: Path | str, raw: object) -> DopsdError:
    """Return pydantic's errors as one with a line for each of the first, and the others' number."""
    faults = error.errors()
    for fault in faults:
        fault["loc"] = _without_type(fault["loc"])
    more = [f"{path}: and {len(faults) - SHOWN} more errors"] if len(faults) > SHOWN else []
    lines = [_line(fault, path, raw) for fault in faults[:SHOWN]]
    return DopsdError(lines + more, code=_code(faults[0]))


def _without_type(key_path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return a key without the type that pydantic adds after the name of a task: data.NAME.TYPE."""
    is_typed = key_path[:1] == ("data",) and key_path[2:3] in ((CUSTOM,), (GYM,))
    return key_path[:2] + key_path[3:] if is_typed else key_path


def nearest(key_path: tuple[Any, ...]) -> str:
    """Suggest where else this key is, the most similar one here, or list the section's keys."""
    section: Any = Params
    for part in (part for part in key_path[:-1] if isinstance(part, str)):  # no list's numbers
        field = section.model_fields.get(part)
        own = type_of(part) if section is TasksConfig else None
        section = FOLDERS.config_class(own) if own else field.annotation if field else None
        section = next((kind for kind in get_args(section) if kind is not NoneType), section)
        if not isinstance(section, type) or not issubclass(section, Section):
            return "see the comments in params.yaml for the known keys"
    name = str(key_path[-1])[:80]
    matches = [*_deeper(section, name)] or get_close_matches(name, section.model_fields, 1)
    if matches:
        return f"did you mean {' or '.join(matches[:3])}?"
    own = "; for a task of your own add type: custom" if section is TasksConfig else ""
    return f"there is {', '.join(section.model_fields)}{own}"


def _deeper(section: type[Section], name: str, above: str = "") -> Iterator[str]:
    """Yield the dotted keys of this name in the sections below."""
    for key, field in section.model_fields.items():
        if above and key == name:
            yield above + key
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _deeper(field.annotation, name, f"{above}{key}.")
