"""Published checkpoints of each architecture, from the file checkpoints.yaml in its folder."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ruamel.yaml import YAML

from dopsd.models.architecture import ARCHITECTURES, config_class

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.models.denoiser import DenoiserConfig


class Published(NamedTuple):
    """A published checkpoint.

    Attributes:
        name: its name on the Hugging Face hub.
        architecture: folder of dopsd/models, or a plug-in.
        parameters: number of weights; None: not known.
        gigabytes: of its weights in bfloat16; None: not known.
        licence: of the weights, or why it is not known.
        settings: settings that it needs, as `dopsd params --set` takes them.
        shape: fields of its config.json that decide its size; None: not known.
        class_name: the class that its config.json names, if the model_type there is another
            architecture's.
    """

    name: str
    architecture: str
    parameters: float | None
    gigabytes: float | None
    licence: str
    settings: str = ""
    shape: dict[str, Any] | None = None
    class_name: str = ""

    def config(self) -> DenoiserConfig | None:
        """Return a config of its size; None if that is not known."""
        return None if self.shape is None else config_class(self.architecture)(**self.shape)


def named(base: Path) -> Published | None:
    """Return the published checkpoint that a folder is named after; None if there is none."""
    return next((row for row in published() if row.name.endswith(f"/{base.name}")), None)


def by_class() -> dict[str, str]:
    """Return the architecture of each class whose files name another one's model_type."""
    return {row.class_name: row.architecture for row in published() if row.class_name}


def published() -> list[Published]:
    """Return all published checkpoints, smallest first."""
    found = []
    for architecture, package in ARCHITECTURES.packages.items():
        path = files(package).joinpath("checkpoints.yaml")
        if path.is_file():
            rows = YAML(typ="safe", pure=True).load(path.read_text()) or {}
            found += [Published(name, architecture, **row) for name, row in rows.items()]
    return sorted(found, key=lambda row: (row.parameters or float("inf"), row.name))
