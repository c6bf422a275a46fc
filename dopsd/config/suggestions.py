"""Suggest a key of params.yaml in the place of an unknown one."""

from __future__ import annotations

from difflib import get_close_matches
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

from dopsd.config.params import Params
from dopsd.config.tasks import TasksConfig
from dopsd.core.settings import Section
from dopsd.tasks.custom.config import CustomTaskConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


def nearest(key_path: tuple[Any, ...]) -> str:
    """Suggest where else this key is, the most similar one here, or list the section's keys.

    Args:
        key_path: the parts of the key.
    """
    section: Any = Params
    for part in (part for part in key_path[:-1] if isinstance(part, str)):  # no list's numbers
        field = section.model_fields.get(part)
        is_own = section is TasksConfig and field is None
        section = CustomTaskConfig if is_own else field.annotation if field else None
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
