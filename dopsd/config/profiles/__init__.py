"""Profiles: complete settings by name, made from YAML files (`layers`)."""

from itertools import product
from pathlib import Path
from typing import Any

from dopsd.config.params import Params
from dopsd.config.profiles.layers import Family, embedded, families, language_models, merge
from dopsd.core.errors import Code, unknown

EMBEDDED = "embedded"
AS_IT_STANDS = "params.yaml as it stands"  # in place of a profile: the settings of that file
PRESET, HARDWARE = "reference", "1x80gb"
NO_SECTIONS = ("protocol", "limit", "at_once")  # keys of layers that are no sections of params.yaml
NEEDS_PROFILE = "--preset and --hardware need a profile; add --profile llada-8b-gsm8k or another"


def names() -> list[str]:
    """Return the names of all profiles."""
    tasks = language_models()["tasks"]
    return [EMBEDDED, *(f"{family}-{task}" for family in families() for task in tasks)]


def listed() -> str:
    """Return the names of all profiles in few words."""
    bases, tasks = (", ".join(part) for part in (families(), language_models()["tasks"]))
    return f"{EMBEDDED}, and BASE-TASK for the bases {bases} and the tasks {tasks}"


def family_of(profile: str) -> Family | None:
    """Return the base that a profile is for; None for `embedded` and unknown names."""
    return families().get(profile.rpartition("-")[0])


def base_of(profile: str) -> str:
    """Return the folder of the base that a profile is for."""
    family = family_of(profile)
    return family.path if family else str(embedded()["model"]["path"])


def resolve(profile: str, preset: str = PRESET, hardware: str = HARDWARE) -> dict[str, Any]:
    """Return every setting of a profile.

    A profile of a language model is the code's defaults with these layers merged over them: what
    all share, and what the base changes of it; the task; the preset; the hardware, where the base
    may have a batch size of its own.
    """
    if profile not in names():
        raise Code.PROFILE.error(unknown(f"--profile {profile}", names(), listed()))
    family = family_of(profile)
    if family is None:
        if (preset, hardware) != (PRESET, HARDWARE):
            raise Code.PROFILE.error(
                f"--profile {EMBEDDED}: --preset and --hardware apply to profiles of language"
                " models only; remove them"
            )
        return embedded()
    layers, task = language_models(), profile.rpartition("-")[2]
    _require("preset", preset, list(layers["presets"]))
    if hardware in layers["hardware"] and hardware not in family.hardware:
        raise Code.PROFILE.error(
            f"--hardware {hardware}: {profile} has no settings for it; there is"
            f" {', '.join(family.hardware)}"
        )
    _require("hardware", hardware, family.hardware)
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
        {"model": {"path": family.path}},
        family.common,
        layers["tasks"][task],
        layers["presets"][preset],
        layers["hardware"][hardware],
    )
    for layer in chosen:
        merge(raw, {key: value for key, value in layer.items() if key not in NO_SECTIONS})
    raw["matrix"]["tasks"] = [task]
    if limit := layers["presets"][preset].get("limit"):
        shorten(raw, task, limit)
    collects = -(-raw["train"]["updates"] // raw["method"]["d_opsd"]["updates_per_trajectory"])
    raw["ablate"]["variants"]["one_update_same_data"]["train"] = {"updates": collects}
    own = {"batch_size": size} if (size := family.batch_size.get(hardware)) else {}
    rows = {"min_rows": count} if (count := family.min_rows.get(hardware)) else {}
    raw["sampling"] |= own | rows
    for protocol in raw["evaluate"]["protocols"].values():
        protocol |= family.protocol | layers["hardware"][hardware]["protocol"] | own
        protocol |= {"order": "probability"} if protocol.get("threshold") else {}
    return raw


def _require(option: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise Code.PROFILE.error(unknown(f"--{option} {value}", known))


def presets() -> list[str]:
    """Return the presets of the profiles of language models."""
    return list(language_models()["presets"])


def hardware() -> list[str]:
    """Return the kinds of hardware that profiles of language models know."""
    return list(language_models()["hardware"])


def without_overrides(section: dict[str, Any]) -> dict[str, Any]:
    """Return a task's section without the keys of overrides that are null."""
    overrides = [("model", None), ("pretrain", None)]
    return {key: value for key, value in section.items() if (key, value) not in overrides}


def shorten(raw: dict[str, Any], task: str, limit: int) -> None:
    """Limit the problems of each split, and the updates of every run to section train's."""
    for method in raw["method"].values():
        for key in ("updates", "checkpoint_every"):
            method["train"].pop(key, None)
            raw["adapt"]["learn"]["train"][key] = raw["train"][key]
    raw["adapt"]["learn"]["train"]["prompts_per_collect"] = limit
    raw["data"][task]["limit"] = limit


def choices(task: str) -> list[tuple[str, str, str]]:
    """Return profile, preset and hardware of every choice of settings that a task has."""
    found = [(EMBEDDED, PRESET, HARDWARE)]
    for name, family in families().items():
        if f"{name}-{task}" in names():
            presets = language_models()["presets"]
            found += product((f"{name}-{task}",), presets, family.hardware)
    return found


def attempts(base: str, task: str) -> float | None:
    """Return the mean rollouts of a problem with an untrained base, under pass@8.

    Args:
        base: folder of the base, whose name decides.

    Returns:
        None if nobody has measured it.
    """
    name = Path(base).name
    known = [f.attempts for f in families().values() if Path(f.path).name == name]
    return known[0].get(task) if known else None


def published_rows(split: str, task: str) -> int | None:
    """Return the rows of a task's published set, `train` or `test`; None if it has none."""
    known: dict[str, int] = language_models()[split]
    return known.get(task)


def at_once(hardware: str) -> int:
    """Return how many runs of a matrix this hardware makes side by side."""
    count: int = language_models()["hardware"][hardware].get("at_once", 1)
    return count


def gpus(hardware: str) -> list[str]:
    """Return the GPUs that an estimate is made for with this hardware."""
    known: dict[str, list[str]] = language_models()["gpus"]
    if hardware not in known:
        raise Code.PROFILE.error(unknown(f"--hardware {hardware}", known))
    return known[hardware]
