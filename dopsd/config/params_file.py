"""`dopsd params`: write params.yaml from a profile, or change the settings that it holds."""

import codecs
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config import profiles
from dopsd.config.layout import in_layout, render
from dopsd.config.loading import checked, parse_yaml, read_yaml
from dopsd.config.named_files import require_files
from dopsd.config.params import Params
from dopsd.config.profiles.layers import MEMBERS, completed, embedded, is_embedded
from dopsd.config.tasks import by_name, own_tasks
from dopsd.core.errors import Code
from dopsd.core.files import rewrite
from dopsd.core.settings import Section
from dopsd.tasks.registry import TASKS

DOT = "\0"  # stands for a dot in a name that is a part of a dotted key
BEFORE = Path("work/params.before.yaml")  # the file that was replaced
OF_RUN = Path("work/params.run.yaml")  # the file as the last run wrote it
WRITTEN = Path("work/params.written.yaml")  # the file as another command last wrote it


def single(key: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield the settings that a change sets, by dotted key: a section keeps what it does not name.

    `{}` changes nothing, but for a section without values of its own, which it empties, and one
    that may be null, which it sets to its defaults.
    """
    kind: Any = Params
    for name in key.split("."):
        fields = kind.model_fields if _is_section(kind) else {}
        kind = (
            fields[name].annotation if name in fields else get_args(kind)[1:] and get_args(kind)[1]
        )
    fields = kind.model_fields if _is_section(kind) else {}
    has_none = fields and all(field.default is None for field in fields.values())
    is_empty = value == {} and (has_none or type(None) in get_args(kind))
    if isinstance(value, dict) and not is_empty and any(map(_is_section, (kind, *get_args(kind)))):
        for name, inner in value.items():
            yield from single(f"{key}.{str(name).replace('.', DOT)}", inner)
    else:
        yield key, value


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def with_changes(raw: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Return raw settings with changes, and with the sections that they leave out.

    Args:
        raw: the settings as read from YAML; they stay as they are.
        changes: `key=value` with a dotted key and a YAML value, such as `train.updates=50`. The
            value of a section is merged into it.

    Raises:
        DopsdError: if a change has no key, no `=` or no YAML value, or if its path leads through
            a value.
    """
    raw = dict(completed(raw))
    for change in changes:
        key, sign, text = change.partition("=")
        if not sign or not key:
            raise Code.CHANGE.error(f"--set {change}: expected key=value, such as train.updates=50")
        hint = f'; a pattern goes in quotes: {key}="..."' if set(text) & set("[]{}") else ""
        label = f"--set {change:.200}: {text[:80]!r} is not a YAML value{hint}"
        for name, value in single(key, parse_yaml(text, label)):
            *path, last = _parts(raw, name)
            section = raw
            for part in path:
                inner = section.get(part)
                inner = {} if inner is None else inner
                if not isinstance(inner, dict):
                    raise Code.CHANGE.error(f"--set {change}: {part} is not a section")
                section[part] = dict(inner)  # a copy: an alias of YAML may share it
                section = section[part]
            section[last] = value
    return raw


def _parts(raw: Any, key: str) -> Iterator[str]:  # noqa: ANN401  # any YAML value
    """Yield the names of a dotted key; one that the settings have may hold a dot: t0.7."""
    names = key.split(".")
    while names:
        known = raw if isinstance(raw, dict) else {}
        joined = (n for n in range(len(names), 1, -1) if ".".join(names[:n]) in known)
        count = next(joined, 1)
        name = ".".join(names[:count]).replace(DOT, ".")
        yield name
        names, raw = names[count:], known.get(name)


def flat(raw: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings by dotted key; an empty section counts as a value."""
    flattened: dict[str, Any] = {}
    for key, value in raw.items():
        flattened |= (
            flat(value, f"{prefix}{key}.")
            if isinstance(value, dict) and value
            else {f"{prefix}{key}": value}
        )
    return flattened


def _entries(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the settings by dotted key, with each evaluation protocol as one value."""
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
    """Return a line for every change to section `train` that a method of the matrix overrides."""
    keys = {
        change.partition("=")[0].split(".")[1] for change in changes if change.startswith("train.")
    }
    overrides = {
        name: vars(settings.method)[name].train.model_dump(exclude_none=True)
        for name in settings.matrix.methods
    }
    return [
        f"method.{name}.train.{key} is {values[key]} and overrides train.{key}"
        for name, values in overrides.items()
        for key in sorted(keys & values.keys())
    ]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line `key: old -> new` for every key whose value differs.

    A task or a method that joins takes one line.
    """
    joined = [
        f"{section}.{name}"
        for section in MEMBERS
        for name in sorted(new.get(section, {}).keys() - (old.get(section) or {}).keys())
        if section in old
    ]
    old_entries, new_entries = _entries(old), _entries(new)
    keys = [
        key
        for key in old_entries | new_entries
        if old_entries.get(key, "absent") != new_entries.get(key, "absent")
        and not (old_entries.get(key) in (None, {}) and key not in new_entries)  # it has keys now
        and ".".join(key.split(".")[:2]) not in joined
    ]
    changed = [
        f"{key}: {_as_yaml(old_entries, key, '(absent)')} ->"
        f" {_as_yaml(new_entries, key, '(removed)')}"
        for key in keys
    ]
    return changed + [f"{name}: added" for name in joined]


def _as_yaml(settings: dict[str, Any], key: str, default: str) -> str:
    """Format a value as YAML: true and null, not True and None."""
    return json.dumps(settings[key], default=str) if key in settings else default


def used(settings: Params) -> dict[str, set[str]]:
    """Return the tasks and methods whose sections DVC's stages name as parameters."""
    tasks = {*settings.matrix.tasks, *settings.pretrain.tasks, *settings.verify_teacher.tasks}
    methods = {*settings.matrix.methods, settings.ablate.method}
    return {"data": tasks | {settings.ablate.task}, "method": methods}


def missing(settings: Params) -> list[str]:
    """Return the sections that DVC's stages need and the file does not have, as dotted keys."""
    raw = read_yaml(settings.file)
    return [
        f"{section}.{name}"
        for section, names in used(settings).items()
        for name in sorted(names - (raw.get(section) or {}).keys())
    ]


def fit_sections(raw: dict[str, Any], settings: Params, old: dict[str, Any]) -> None:
    """Add the sections that DVC's stages need, and drop those that say nothing.

    With an embedded base a section says nothing if it is unused, and as it would be without it.

    Args:
        old: settings whose sections stay in any case.
    """
    names_used, profile = used(settings), embedded() if is_embedded(raw) else {}
    for section, registry in zip(MEMBERS, (TASKS, ALGORITHMS), strict=True):
        part = dict(raw.get(section) or {})
        stay = names_used[section] | (old.get(section) or {}).keys()
        for name in (names_used[section] - part.keys()) & {*registry.names}:
            defaults = registry.config_class(name)().model_dump(mode="json")
            if section == "method":  # null means the value of section train: left out
                overrides = {
                    key: value for key, value in defaults["train"].items() if value is not None
                }
                defaults["train"] = overrides
            part[name] = profiles.without_overrides(defaults)
        if section == "data":
            named = names_used[section].union(settings.evaluate.watch)
            own = named - part.keys() - {*registry.names}
            part |= {name: by_name(name) for name in own}
        if profile:
            same = {name for name in part if part[name] == profile[section].get(name)}
            part = {name: part[name] for name in part if name in stay or name not in same}
        raw[section] = part


def of_profile(profile: str, preset: str, hardware: str, old: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a profile, with the tasks that the old settings define."""
    raw = profiles.resolve(profile, preset, hardware)
    raw["data"] |= own_tasks(old)
    return raw


def params(
    profile: str | None,
    preset: str,
    hardware: str,
    changes: list[str],
    path: Path,
    is_run: bool = False,
) -> list[str]:
    """Write a settings file and return a line for every key that changed.

    A profile replaces the file and its comments, except for tasks of its own. Changes alone keep
    the comments of the file. The previous file is kept, by `_keep`.

    Args:
        profile: the profile to start from; None starts from the settings in `path`.
        is_run: a run writes the file: refuse settings that name missing files, or a start that does
            not fit.
    """
    if path.is_dir():
        raise Code.NO_SETTINGS_FILE.error(f"--params {path}: is a folder; name a file")
    old = read_yaml(path) if path.is_file() else {}
    if profile is None and (preset, hardware) != (profiles.PRESET, profiles.HARDWARE):
        raise Code.PROFILE.error(profiles.NEEDS_PROFILE)
    if profile is None and not old:
        raise Code.NO_SETTINGS_FILE.error(
            f"{path}: no such file; name a --profile: {profiles.listed()}"
        )
    start = old if profile is None else of_profile(profile, preset, hardware, old)
    raw = with_changes(start, changes)
    settings = checked(raw, "--set" if changes else path)
    if is_run:
        require_files(settings)
    fit_sections(raw, settings, {} if profile else old)
    changed = differences(old, raw)
    before = path.read_bytes() if path.is_file() else b""
    if changed:
        text = render(raw) if profile else in_layout(raw, path)
        has_crlf = before.count(b"\r\n") > before.count(b"\n") / 2
        encoding = "utf-8-sig" if before.startswith(codecs.BOM_UTF8) else "utf-8"
        content = text.replace("\n", "\r\n" if has_crlf else "\n").encode(encoding)
        is_still_of_run = is_of_run(path) and not (profile or changes)  # sections join
        _keep(path, is_run)
        rewrite(path, content)
        _copy(path, OF_RUN if is_run or is_still_of_run else WRITTEN)
    return changed


def is_of_run(path: Path) -> bool:
    """Return whether a settings file is as the last run wrote it."""
    return path.is_file() and OF_RUN.is_file() and path.read_bytes() == OF_RUN.read_bytes()


def way_back(path: Path) -> list[str]:
    """Return how a person gets back what a run replaced; empty for a file that no run wrote."""
    kept = _kept() if is_of_run(path) else []
    return [
        f"{path}: a run wrote it; the last version of yours: {copy}; `cp {copy} {path}` brings it"
        " back"
        for copy in kept[-1:]
    ]


def _kept() -> list[Path]:
    """Return the copies of files that a person had written, the newest last."""
    return sorted(BEFORE.parent.glob(f"{BEFORE.stem}.*{BEFORE.suffix}"))


def _keep(path: Path, is_run: bool) -> None:
    """Copy a settings file that is about to be replaced.

    What a person wrote gets a copy with the time in its name, which nothing replaces. What dopsd
    wrote is no such version, and a run does not keep it.
    """
    BEFORE.parent.mkdir(exist_ok=True)
    if not path.is_file():
        return
    content = path.read_bytes()
    is_own = all(not p.is_file() or p.read_bytes() != content for p in (OF_RUN, WRITTEN))
    if is_own:
        for copy in [copy for copy in _kept() if copy.read_bytes() == content]:
            copy.unlink()
        _copy(path, BEFORE.with_suffix(f".{datetime.now(UTC):%Y%m%d-%H%M%S-%f}{BEFORE.suffix}"))
    if is_own or not is_run:
        _copy(path, BEFORE)


def _copy(path: Path, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    shutil.copy(path, copy)
