"""Write settings as YAML in the layout, and with the comments, of a profile or of a user's file."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from dopsd.config.loading import parse_yaml
from dopsd.config.profiles.layers import embedded_text

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_LINE = 100  # characters of a new section that is written in one line


def render(raw: dict[str, Any]) -> str:
    """Return these settings as YAML, in the embedded profile's layout and with its comments."""
    return _edited(embedded_text(), raw)


def in_layout(raw: dict[str, Any], path: Path) -> str:
    """Return these settings as YAML, in the layout of a settings file and with its comments.

    A file in which one value stands for two keys (YAML's anchors) takes the profile's layout.
    """
    text = _edited(path.read_text(encoding="utf-8-sig"), raw)
    return text if parse_yaml(text, str(path)) == raw else render(raw)


def _edited(text: str, raw: dict[str, Any]) -> str:
    """Return the YAML text with these values in place of its own."""
    editor = YAML()
    editor.width, editor.preserve_quotes = 4096, True
    editor.representer.add_representer(
        type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    editor.representer.add_representer(
        float, lambda r, x: r.represent_scalar("tag:yaml.org,2002:float", _number(x))
    )
    document = editor.load(text)
    _put(document, raw)
    out = io.StringIO()
    editor.dump(document, out)
    return _spaced(out.getvalue(), text)


def _number(value: float) -> str:
    """Format a float so that YAML 1.1 readers see a number too: 5.0e-06, not 5e-06."""
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _put(document: CommentedMap, raw: dict[str, Any]) -> None:
    """Write values into a commented document.

    Keys that stay keep their comments.
    """
    for key in [key for key in document if key not in raw]:
        del document[key]
    for key, value in raw.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            _put(document[key], value)
        elif isinstance(value, list) and isinstance(document.get(key), list):
            document[key][:] = value
        elif key not in document or document[key] != value:
            document[key] = _new(value)


def _new(value: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Return a value as it is written: a section in one line, or a line for each key if long."""
    if not isinstance(value, dict):
        return value
    section = CommentedMap({key: _new(inner) for key, inner in value.items()})
    if len(str(value)) <= LONGEST_LINE:
        section.fa.set_flow_style()
    return section


def _spaced(text: str, before: str) -> str:
    """Put back the blank lines before sections, which a key added above them takes."""
    for key in re.findall(r"\n\n(\w+:)", before):
        text = re.sub(rf"(?<!\n)\n{key}", f"\n\n{key}", text)
    return text
