"""Find runs that another release began under a different folder name.

The name is a hash of the settings, and a release may have had other keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.files import WORK
from dopsd.core.fingerprint import sha256
from dopsd.training.resuming import RECORD, record_of
from dopsd.training.run_settings import input_files, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dopsd.training.run_settings import RunSettings


def of_other_releases(run: RunSettings) -> Iterator[Path]:
    """Yield folders of this run whose settings differ only in keys that one side lacks.

    Data and base are the same. A key that the other release lacked must have its default now,
    because another value is another run.
    """
    settings, inputs = settings_of(run)[0], inputs_of(run)
    for file in WORK.glob(f"train-*/{RECORD}"):
        record = record_of(file.parent)
        if (
            not record
            or str(run.key) not in record["cells"]
            or sorted(record["inputs"].values()) != sorted(inputs.values())
        ):
            continue
        differences = [*differing(record["settings"], settings)]
        if differences and all(
            side == "before" or (side == "now" and _is_default(run, key))
            for key, side in differences
        ):
            yield file.parent


def differing(
    before: dict[str, Any], now: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each dotted key whose values differ, and the side that has it: before, now or both."""
    for key in sorted(before.keys() | now.keys()):
        if key not in before or key not in now:
            yield prefix + key, "now" if key in now else "before"
        elif isinstance(before[key], dict) and isinstance(now[key], dict):
            yield from differing(before[key], now[key], f"{prefix}{key}.")
        elif before[key] != now[key]:
            yield prefix + key, "both"


def _is_default(run: RunSettings, key: str) -> bool:
    """Return whether a key of settings_of has its default in code."""
    value: Any = vars(run) | {run.kind: run.algorithm}
    *sections, name = key.split(".")
    for section in sections:
        value = value[section] if isinstance(value, dict) else getattr(value, section)
    fields = getattr(type(value), "model_fields", {})
    return name in fields and getattr(value, name) == fields[name].get_default(
        call_default_factory=True
    )


def inputs_of(run: RunSettings) -> dict[str, str]:
    """Return the digests of the files that decide a run, by path."""
    return {path.as_posix(): sha256(path) for path in input_files(run)}
