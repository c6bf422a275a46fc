"""How a run's settings differ from the nearest profile, and the commands that repeat the run."""

import json
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

from dopsd.algorithms.common.config import BETWEEN, kind_of
from dopsd.config.loading import checked
from dopsd.config.params import Params
from dopsd.config.params_file import flat
from dopsd.config.profiles import HARDWARE, PRESET, base_of, choices, resolve
from dopsd.core.paths import RunKey

SHARED = ("model", "pretrain", "sampling", "train", "evaluate", "select", "launch")
ABSENT = "absent"
Change = tuple[str, Any, Any]  # key, the run's value, the profile's value


def nearest_profile(params: Params, key: RunKey) -> tuple[str, list[Change]]:
    """Return the profile with the fewest differences from a run's settings, and these.

    If there are profiles of the run's base, it is one of them.

    Args:
        params: all settings; they have to be those of the run.
    """
    run_sections, found = _sections(params, key), choices(key.task)
    of_base = [choice for choice in found if base_of(choice[0]) == params.model.path]
    candidates = []
    for profile, preset, hardware in of_base or found:
        settings = _settings(profile, preset, hardware)
        options = [("--preset", preset), ("--hardware", hardware)]
        words = [f"{name} {value}" for name, value in options if value not in (PRESET, HARDWARE)]
        changes = list(changed(run_sections, _sections(settings, key)))
        candidates.append((" ".join([profile, *words]), changes))
    return min(candidates, key=lambda candidate: len(candidate[1]))


@cache
def _settings(profile: str, preset: str, hardware: str) -> Params:
    """Return a profile's settings; a report of each of many runs asks for them."""
    return checked(resolve(profile, preset, hardware), profile)


def _sections(params: Params, key: RunKey) -> dict[str, Any]:
    """Return the settings that a run depends on, section by section."""
    raw = params.model_dump(mode="json")
    kind = kind_of(key.method)
    sections = {name: raw[name] for name in SHARED}
    own = params.data.custom.get(key.task)  # of a task of the user's own: the keys that are given
    task = own.model_dump(mode="json", exclude_unset=True) if own else raw["data"].get(key.task)
    sections |= {
        "data": {key.task: ABSENT if task is None else task},
        "method": {kind: raw["method"][kind]},
    }
    variant = key.method.partition(BETWEEN)[2]
    if variant:
        variants = {name: v for name, v in raw["ablate"]["variants"].items() if name == variant}
        names = {name: raw["ablate"][name] for name in ("task", "method")}
        sections["ablate"] = names | {"variants": variants}
    return sections


def changed(first: dict[str, Any], second: dict[str, Any], prefix: str = "") -> Iterator[Change]:
    """Yield each key whose values differ, with both values.

    A section is one value where the second has keys that the first lacks: setting keys one by one
    would not remove them.
    """
    for key, value in first.items():
        other, name = second.get(key, ABSENT), f"{prefix}{key}"
        both = isinstance(value, dict) and isinstance(other, dict)
        if both and not other.keys() - value.keys():
            yield from changed(value, other, f"{name}.")
        elif value != other:
            yield name, value, other


def repeat_commands(
    key: RunKey, profile: str, changes: list[Change], commit: str | None
) -> list[str]:
    """Return the commands that repeat a run in a clone."""
    variant = key.method.partition(BETWEEN)[2]
    cell = {"tasks": [key.task], "methods": [key.method], "seeds": [key.seed]}
    pairs = {f"matrix.{name}": value for name, value in cell.items()}
    target = f"report@{key.stage}"
    if variant:
        pairs = {"ablate.run": [variant], "ablate.seeds": [key.seed]}
        target = f"variant@{variant}-{key.seed}"
    pairs |= {name: value for name, value, _ in changes}
    lines = [f"dopsd params --profile {profile}"]
    lines += [
        f"--set {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in pairs.items()
    ]
    checkout = [f"git checkout {commit}"] if commit else []
    return [*checkout, " \\\n  ".join(lines), f"dopsd repro {target}"]


def repeat_text(value: object) -> str:
    """Return a value for readers: texts as they are, others as YAML: true and null.

    Within lists and sections, keys that are null are left out.
    """
    return value if isinstance(value, str) else json.dumps(_without_nulls(value))


def _without_nulls(value: Any) -> Any:  # noqa: ANN401  # any value of the settings
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def rows(changes: list[Change]) -> list[tuple[str, str, str]]:
    """Return the differences for readers; a section that the profile lacks by dotted key."""
    return [
        (key, repeat_text(value), repeat_text(of_profile))
        for name, of_run, of_profile in changes
        for key, value in (flat({name: of_run}) if of_profile == ABSENT else {name: of_run}).items()
    ]
