"""Profiles: ready settings by name."""

from __future__ import annotations

from copy import deepcopy
from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML

from dopsd.config.params import Params
from dopsd.core.errors import DopsdError

EMBEDDED = "embedded"
PRESET, HARDWARE = "reference", "1x80gb"
FOLDER = files("dopsd.config.profiles")


def _read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe", pure=True).load(FOLDER.joinpath(name).read_text())
    return values


def _layers() -> dict[str, Any]:
    return _read("llada-8b.yaml")


def names() -> list[str]:
    return [EMBEDDED, *(f"llada-8b-{task}" for task in _layers()["tasks"])]


def merge(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`other` over `into`, section by section; `protocols` are replaced as a whole."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict) and key != "protocols":
            merge(into[key], value)
        else:
            into[key] = deepcopy(value)
    return into


def resolve(profile: str, preset: str = PRESET, hardware: str = HARDWARE) -> dict[str, Any]:
    """Every setting of a profile. `embedded` is the shipped params.yaml; the others stand on the
    code's defaults.
    """
    if profile not in names():
        raise DopsdError(f"--profile {profile}: unknown; there is {', '.join(names())}")
    if profile == EMBEDDED:
        if (preset, hardware) != (PRESET, HARDWARE):
            raise DopsdError(
                f"--profile {EMBEDDED} has no preset and no hardware: they go with a llada-8b"
                " profile"
            )
        return _read("embedded.yaml")
    layers, task = _layers(), profile.removeprefix("llada-8b-")
    for option, value in (("presets", preset), ("hardware", hardware)):
        if value not in layers[option]:
            raise DopsdError(
                f"--{option.removesuffix('s')} {value}: unknown; there is"
                f" {', '.join(layers[option])}"
            )
    raw = Params.model_validate({"evaluate": {"protocols": {"greedy": {}}}}).model_dump()
    raw |= {section: resolve(EMBEDDED)[section] for section in ("pretrain", "ablate")}
    raw["ablate"]["task"] = task
    raw["data"] = {name: without_model(section) for name, section in raw["data"].items()}
    for method in raw["method"].values():
        method["train"] = {
            key: value for key, value in method["train"].items() if value is not None
        }
    chosen = (
        layers["common"],
        layers["tasks"][task],
        layers["presets"][preset],
        layers["hardware"][hardware],
    )
    for layer in chosen:
        merge(raw, {key: value for key, value in layer.items() if key != "protocol"})
    raw["matrix"]["tasks"] = [task]
    collects = -(-raw["train"]["updates"] // raw["method"]["d_opsd"]["updates_per_trajectory"])
    raw["ablate"]["variants"]["one_update_same_data"]["train"] = {"updates": collects}
    for protocol in raw["evaluate"]["protocols"].values():
        protocol |= layers["hardware"][hardware]["protocol"]
    return raw


def without_model(section: dict[str, Any]) -> dict[str, Any]:
    """A section as params.yaml has it: a task that has nothing of its own in section `model` has no
    such key.
    """
    return {key: value for key, value in section.items() if (key, value) != ("model", None)}


def facts(task: str) -> dict[str, Any]:
    """What an estimate needs to know about a task."""
    values: dict[str, Any] = _layers()["facts"][task]
    return values


def gpus(hardware: str) -> list[str]:
    known: dict[str, list[str]] = _layers()["gpus"]
    if hardware not in known:
        raise DopsdError(f"--hardware {hardware}: unknown; there is {', '.join(known)}")
    return known[hardware]
