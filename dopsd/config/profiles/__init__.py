"""Profiles: complete settings by name, made from YAML files (`layers`)."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import Any

from dopsd.config.params import Params
from dopsd.config.profiles.layers import embedded, llada
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown

EMBEDDED = "embedded"
AS_IT_STANDS = "params.yaml as it stands"  # in place of a profile: the settings of that file
PRESET, HARDWARE = "reference", "1x80gb"
NEEDS_PROFILE = "--preset and --hardware need a profile; add --profile llada-8b-gsm8k or another"


def names() -> list[str]:
    """Return the names of all profiles."""
    return [EMBEDDED, *(f"llada-8b-{task}" for task in llada()["tasks"])]


def merge(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge `other` into `into` in place, section by section, and return `into`.

    `protocols` are replaced as a whole, because a profile names all of its own.
    """
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict) and key != "protocols":
            merge(into[key], value)
        else:
            into[key] = deepcopy(value)
    return into


def resolve(profile: str, preset: str = PRESET, hardware: str = HARDWARE) -> dict[str, Any]:
    """Return every setting of a profile.

    A llada-8b profile is the code's defaults with the layers of llada-8b.yaml merged over them:
    common, task, preset and hardware.

    Raises:
        DopsdError: if the profile, the preset or the hardware is unknown.
    """
    if profile not in names():
        raise DopsdError(unknown(f"--profile {profile}", names()), code=Code.PROFILE)
    if profile == EMBEDDED:
        if (preset, hardware) != (PRESET, HARDWARE):
            raise DopsdError(
                f"--profile {EMBEDDED}: --preset and --hardware apply to llada-8b profiles only;"
                " remove them",
                code=Code.PROFILE,
            )
        return embedded()
    layers, task = llada(), profile.removeprefix("llada-8b-")
    for option, value in (("presets", preset), ("hardware", hardware)):
        if value not in layers[option]:
            raise DopsdError(
                unknown(f"--{option.removesuffix('s')} {value}", layers[option]), code=Code.PROFILE
            )
    raw = Params.model_validate({"evaluate": {"protocols": {"greedy": {}}}}).model_dump()
    raw |= {section: resolve(EMBEDDED)[section] for section in ("pretrain", "ablate")}
    raw["ablate"]["task"] = task
    raw["data"] = {name: without_overrides(section) for name, section in raw["data"].items()}
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


def without_overrides(section: dict[str, Any]) -> dict[str, Any]:
    """Return a task's section without the keys of overrides that are null."""
    overrides = [("model", None), ("pretrain", None)]
    return {key: value for key, value in section.items() if (key, value) not in overrides}


def choices(task: str) -> list[tuple[str, str, str]]:
    """Return profile, preset and hardware of every choice of settings that a task has."""
    layers = llada()
    of_task = f"llada-8b-{task}"
    combined = product((of_task,), layers["presets"], layers["hardware"])
    return [(EMBEDDED, PRESET, HARDWARE), *(combined if of_task in names() else ())]


def known_facts() -> list[str]:
    """Return the tasks that `facts` knows."""
    return list(llada()["facts"])


def facts(task: str) -> dict[str, Any]:
    """Return LLaDA-8B-Instruct's figures on a task for estimates.

    Returns:
        `attempts`: mean rollouts for each problem under pass@8; `test`: problems of the published
        test set.
    """
    values: dict[str, Any] = llada()["facts"][task]
    return values


def gpus(hardware: str) -> list[str]:
    """Return the GPUs that an estimate is made for with this hardware.

    Raises:
        DopsdError: if the hardware is unknown.
    """
    known: dict[str, list[str]] = llada()["gpus"]
    if hardware not in known:
        raise DopsdError(unknown(f"--hardware {hardware}", known), code=Code.PROFILE)
    return known[hardware]
