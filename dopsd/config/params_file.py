"""`dopsd params`: write params.yaml with the settings of a profile, or those there now, changed."""

from __future__ import annotations

import io
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.loading import checked, missing_files, parse_yaml, read_yaml
from dopsd.config.params import Params
from dopsd.config.profiles import FOLDER, HARDWARE, PRESET, names, resolve, without_model
from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import TASKS

BEFORE = Path("work/params.before.yaml")


def with_changes(raw: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """`key=value` pairs put in place; values are YAML. Whether key and value are sound is checked
    afterwards.
    """
    for change in changes:
        key, sign, text = change.partition("=")
        if not sign or not key:
            raise DopsdError(f"--set {change}: expected key=value, such as train.updates=50")
        value = parse_yaml(text, f"--set {change:.200}: {text[:80]!r} is not a YAML value")
        *path, last = key.split(".")
        section = raw
        for part in path:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise DopsdError(f"--set {change}: {part} is a value, not a section")
        section[last] = value
    return raw


def flat(raw: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key; what is not a section is a value."""
    flattened: dict[str, Any] = {}
    for key, value in raw.items():
        flattened |= (
            flat(value, f"{prefix}{key}.")
            if isinstance(value, dict) and value
            else {f"{prefix}{key}": value}
        )
    return flattened


def _entries(raw: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, a protocol being one."""
    section = raw.get("evaluate")
    raw_protocols = section.get("protocols") if isinstance(section, dict) else None
    protocols = (
        {f"evaluate.protocols.{name}": p for name, p in raw_protocols.items()}
        if isinstance(raw_protocols, dict)
        else {}
    )
    return {
        key: value for key, value in flat(raw).items() if not key.startswith("evaluate.protocols.")
    } | protocols


def overruled(settings: Params, changes: list[str]) -> list[str]:
    """What was changed in section train and does not hold for a method of the matrix that has a
    value of its own.
    """
    keys = {
        change.partition("=")[0].split(".")[1] for change in changes if change.startswith("train.")
    }
    overrides = {
        name: vars(settings.method)[name].train.model_dump(exclude_none=True)
        for name in settings.matrix.methods
    }
    return [
        f"method.{name}.train.{key} is {values[key]} and goes before train.{key}"
        for name, values in overrides.items()
        for key in sorted(keys & values.keys())
    ]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    old_entries, new_entries = _entries(old), _entries(new)
    keys = [
        key
        for key in old_entries | new_entries
        if old_entries.get(key, "absent") != new_entries.get(key, "absent")
    ]
    return [
        f"{key}: {_as_yaml(old_entries, key, '(absent)')} -> {_as_yaml(new_entries, key, '(gone)')}"
        for key in keys
    ]


def _as_yaml(settings: dict[str, Any], key: str, default: str) -> str:
    """A value as YAML has it: true and null, not True and None."""
    return json.dumps(settings[key], default=str) if key in settings else default


def render(raw: dict[str, Any]) -> str:
    """The text of params.yaml: the embedded profile's layout and comments with these values."""
    editor = YAML()
    editor.width, editor.preserve_quotes = 4096, True
    editor.representer.add_representer(
        type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    editor.representer.add_representer(
        float, lambda r, x: r.represent_scalar("tag:yaml.org,2002:float", _number(x))
    )
    document = editor.load(FOLDER.joinpath("embedded.yaml").read_text())
    _put(document, raw)
    out = io.StringIO()
    editor.dump(document, out)
    return out.getvalue()


def _number(value: float) -> str:
    """A float that YAML 1.1 readers take for one too: 5.0e-06, not 5e-06."""
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _put(document: CommentedMap, raw: dict[str, Any]) -> None:
    """Values over a commented document: comments stay at the keys that stay, new sections and lists
    take one line.
    """
    for key in [key for key in document if key not in raw]:
        del document[key]
    for key, value in raw.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            _put(document[key], value)
        elif isinstance(value, list) and isinstance(document.get(key), list):
            document[key][:] = value
        elif key not in document or document[key] != value:
            document[key] = value
            if isinstance(value, dict):
                document[key] = CommentedMap(value)
                document[key].fa.set_flow_style()


def add_sections(raw: dict[str, Any], settings: Params) -> None:
    """Write out the sections of the matrix's tasks and methods that are missing: DVC's stages name
    their keys.
    """
    named = (
        ("data", TASKS, settings.matrix.tasks),
        ("method", ALGORITHMS, settings.matrix.methods),
    )
    for section, registry, names_listed in named:
        for name in names_listed:
            defaults = registry.config_class(name)().model_dump(mode="json")
            if section == "method":  # null means as in section train: left out
                own = {key: value for key, value in defaults["train"].items() if value is not None}
                defaults["train"] = own
            raw.setdefault(section, {}).setdefault(name, without_model(defaults))


def params(
    profile: str | None,
    preset: str,
    hardware: str,
    changes: list[str],
    path: Path,
    needs_files: bool = False,
) -> list[str]:
    """Write `path` for a profile (None: the settings that stand there) with changes; a line for
    every key that changed.

    With `needs_files`, settings that name files which are not here are refused as well.
    """
    if path.is_dir():
        raise DopsdError(f"--params {path}: is a folder; name a file")
    old = read_yaml(path) if path.is_file() else {}
    if profile is None and (preset, hardware) != (PRESET, HARDWARE):
        raise DopsdError(
            "--preset and --hardware choose among a profile's settings: name one with --profile"
        )
    if profile is None and not old:
        raise DopsdError(f"{path}: no such file; name a --profile: {', '.join(names())}")
    raw = with_changes(
        deepcopy(old) if profile is None else resolve(profile, preset, hardware), changes
    )
    settings = checked(raw, "--set" if changes else path)
    if needs_files and (missing := missing_files(settings)):
        raise DopsdError([f"{line}: no such file in {Path.cwd()}" for line in missing])
    add_sections(raw, settings)
    changed = differences(old, raw)
    if path.is_file() and changed:
        BEFORE.parent.mkdir(exist_ok=True)
        BEFORE.write_text(path.read_text())
    if changed:
        tmp = path.with_name(f".{path.name}.tmp")
        tmp.write_text(render(raw))
        tmp.rename(path)
    return changed
