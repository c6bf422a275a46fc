"""The YAML files of the profiles: in this folder, and in those of algorithms and architectures."""

from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import Code, unknown
from dopsd.core.paths import BASES
from dopsd.core.registry import Registry
from dopsd.models.registry import ARCHITECTURES

FOLDER = files("dopsd.config.profiles")
EMBEDDED, LANGUAGE_MODELS = "embedded.yaml", "language_models.yaml"
PROFILES = "profiles.yaml"  # in the folder of an algorithm or an architecture
MODELS = "models"  # folder of downloaded bases
MEMBERS = ("data", "method")  # sections of params.yaml with a section for each task or method


class Family(NamedTuple):
    """The profiles of one base, a profile for each task."""

    base: str  # its name on the Hugging Face hub, or of its folder if it is not published
    hardware: list[str]  # hardware that the profiles are for
    # what they change of the settings that all language models share
    common: dict[str, Any] = {}  # noqa: RUF012  # read only
    # what they change of every evaluation protocol
    protocol: dict[str, Any] = {}  # noqa: RUF012
    # mean rollouts of a problem with the untrained base, by task, where it is known
    attempts: dict[str, float] = {}  # noqa: RUF012
    # texts in a pass of rollouts and evaluations, by hardware, where the base's size allows others
    # than the hardware's own
    batch_size: dict[str, int] = {}  # noqa: RUF012
    # rollouts in a pass that attempts ahead fill it to, by hardware, where fewer take it as long
    min_rows: dict[str, int] = {}  # noqa: RUF012

    @property
    def path(self) -> str:
        """The folder that its weights are in."""
        return f"{MODELS}/{self.base.rpartition('/')[2]}"


def _in_folders(registry: Registry, file: str) -> dict[str, str]:
    """Return the text of this file in each folder that has it, by the folder's name."""
    paths = {name: registry.path(name, file) for name in registry.names}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path}


def _parsed(text: str) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return values


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


@cache
def embedded_text() -> str:
    """Return the profile `embedded` as text: its file, with the sections of the algorithms."""
    before, method, after = (FOLDER / EMBEDDED).read_text(encoding="utf-8").partition("\nmethod:")
    comment, _, rest = after.partition("\n")
    texts = _in_folders(ALGORITHMS, EMBEDDED).values()
    sections = "".join(indent(text, "  ") for text in texts)
    return f"{before}{method}{comment}\n{sections}{rest}"


@cache
def _embedded() -> dict[str, Any]:
    return _parsed(embedded_text())


@cache
def _language_models() -> dict[str, Any]:
    layers = _parsed((FOLDER / LANGUAGE_MODELS).read_text(encoding="utf-8"))
    for name, text in _in_folders(ALGORITHMS, PROFILES).items():
        for kind, changes in _parsed(text).items():
            for choice, settings in changes.items():
                label = f"algorithm {name}: {PROFILES}: {kind}.{choice}"
                known = [f"{k}.{c}" for k in ("tasks", "presets") for c in layers[k]]
                if f"{kind}.{choice}" not in known:
                    raise Code.PLUGIN_BROKEN.error(unknown(label, known))
                layers[kind][choice].setdefault("method", {})[name] = settings
    presets = layers["presets"]
    for name, preset in presets.items():
        if base := preset.pop("of", None):  # the sections of another preset, and its own
            presets[name] = merge(deepcopy(presets[base]), preset)
    return layers


@cache
def families() -> dict[str, Family]:
    """Return the bases that have profiles, by the name that their profiles begin with."""
    found = {}
    hardware = _language_models()["hardware"]
    for architecture, text in _in_folders(ARCHITECTURES, PROFILES).items():
        for name, values in _parsed(text).items():
            label = f"architecture {architecture}: {PROFILES}: {name}"
            for key in values.keys() - set(Family._fields):
                raise Code.PLUGIN_BROKEN.error(unknown(f"{label}.{key}", Family._fields))
            for key in {"base", "hardware"} - values.keys():
                raise Code.PLUGIN_BROKEN.error(f"{label}.{key}: missing; add it")
            _require(f"{label}.hardware", values["hardware"], hardware)
            for key in ("batch_size", "min_rows"):
                _require(f"{label}.{key}", values.get(key, {}), values["hardware"])
            found[name] = Family(**values)
    return found


def _require(label: str, kinds: Iterable[str], known: Iterable[str]) -> None:
    for kind in set(kinds) - set(known):
        raise Code.PLUGIN_BROKEN.error(unknown(f"{label}: {kind}", known))


def embedded() -> dict[str, Any]:
    """Return a copy of the settings of the profile `embedded`."""
    return deepcopy(_embedded())


def is_embedded(raw: object) -> bool:
    """Return whether raw settings name an embedded base, a folder in base/."""
    model = raw.get("model") if isinstance(raw, dict) else None
    path = model.get("path") if isinstance(model, dict) else None
    return isinstance(path, str) and Path(path).parts[:1] == BASES.parts


def completed(raw: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Return settings with the sections of tasks and methods that they leave out.

    With an embedded base these are those of the profile `embedded`. Otherwise they are left to the
    defaults of their classes, which are the published values.

    Args:
        raw: the settings as read from YAML; they stay as they are.
    """
    if not is_embedded(raw):
        return raw
    profile = embedded()
    parts = {name: raw.get(name, {}) for name in MEMBERS}
    return raw | {
        name: profile[name] | part for name, part in parts.items() if isinstance(part, dict)
    }


def language_models() -> dict[str, Any]:
    """Return a copy of the layers that the profiles of all language models share."""
    return deepcopy(_language_models())
