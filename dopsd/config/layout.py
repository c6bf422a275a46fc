"""Write settings as YAML in the layout, and with the comments, of a profile or of a user's file."""

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from dopsd.config.loading import parse_yaml
from dopsd.config.profiles.layers import embedded_text
from dopsd.core.errors import Code, DopsdError

LONGEST_LINE = 100  # characters of a new section that is written in one line


def render(raw: dict[str, Any]) -> str:
    """Return these settings as YAML, in the embedded profile's layout and with its comments."""
    text = _edited(embedded_text(), raw)
    if not _holds(text, raw):
        raise Code.CHANGE.error(
            "params: these settings would not be read back as they are, so nothing was written;"
            " write the value that you set differently, or edit the file"
        )
    return text


def in_layout(raw: dict[str, Any], path: Path) -> str:
    """Return these settings as YAML, in the layout of a settings file and with its comments.

    A file in which one value stands for two keys (YAML's anchors) takes the profile's layout.
    """
    text = _edited(path.read_text(encoding="utf-8-sig"), raw)
    return text if _holds(text, raw) else render(raw)


def _holds(text: str, raw: dict[str, Any]) -> bool:
    """Return whether a YAML text can be read, and has these values."""
    try:
        return bool(parse_yaml(text, "") == raw)
    except DopsdError:
        return False


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
    profile = None if text == embedded_text() else editor.load(embedded_text())
    _put(document, raw, profile)
    out = io.StringIO()
    editor.dump(document, out)
    return _spaced(out.getvalue(), text)


def _number(value: float) -> str:
    """Format a float so that YAML 1.1 readers see a number too: 5.0e-06, not 5e-06."""
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _put(document: CommentedMap, raw: dict[str, Any], profile: CommentedMap | None = None) -> None:
    """Write values into a commented document.

    Keys that stay keep their comments. New sections take those that a profile has there.
    """
    for key in [key for key in document if key not in raw]:
        del document[key]
    for key, value in raw.items():
        old, like = document.get(key), None if profile is None else profile.get(key)
        if isinstance(value, dict) and isinstance(old, CommentedMap):
            _keep_on_line(old, value)
            _put(old, value, like if isinstance(like, CommentedMap) else None)
        elif isinstance(value, list) and isinstance(old, CommentedSeq):
            _keep_on_line(old, value)
            old[:] = value
        elif key not in document and isinstance(value, dict) and isinstance(like, CommentedMap):
            document[key] = like
            if profile is not None and key in profile.ca.items:
                document.ca.items[key] = profile.ca.items[key]
            _put(like, value)
        elif key not in document or old != value:
            document[key] = _new(value)


def _keep_on_line(old: CommentedMap | CommentedSeq, value: dict[str, Any] | list[Any]) -> None:
    """Let a value that is or becomes empty stay on the line of its key.

    The line may end in a comment, after which YAML reads no [] or {}.
    """
    is_short = isinstance(value, list) or len(str(value)) <= LONGEST_LINE
    if not (old and value) and old != value and is_short:
        old.fa.set_flow_style()


def _new(value: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Return a value as it is written: in one line, or a line for each key of a long section."""
    if isinstance(value, list):
        items = CommentedSeq(value)
        items.fa.set_flow_style()
        return items
    if not isinstance(value, dict):
        return value
    section = CommentedMap({key: _new(inner) for key, inner in value.items()})
    if len(str(value)) <= LONGEST_LINE:
        section.fa.set_flow_style()
    return section


def _spaced(text: str, before: str) -> str:
    """Put back the blank lines before sections, which a key added above them takes."""
    if not re.search(r"\n\n ", before):  # those that new sections bring
        text = re.sub(r"\n\n+ ", "\n ", text)
    if "\n\n\n" not in before:
        text = re.sub(r"\n{3,}", "\n\n", text)
    for key in re.findall(r"\n\n(\w+:)", before):
        text = re.sub(rf"(?<!\n)\n{key}", f"\n\n{key}", text)
    return text
