"""Checkpoints of each architecture, from the file checkpoints.yaml in its folder."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.architecture import ARCHITECTURES, config_class

if TYPE_CHECKING:
    from dopsd.models.denoiser import DenoiserConfig


class Published(NamedTuple):
    """A published checkpoint, or one that a script of this project makes.

    Attributes:
        name: its name on the Hugging Face hub; the name of its folder if it is not published.
        architecture: folder of dopsd/models, or a plug-in.
        parameters: number of weights; None: not known.
        gigabytes: of its weights in bfloat16; None: not known.
        licence: of the weights, or why it is not known.
        settings: settings that it needs, as `dopsd params --set` takes them.
        shape: fields of its config.json that decide its size; None: not known.
        class_name: the class that its config.json names, if the model_type there may be another.
        made_by: the script that makes it, if it is not published; or empty.
    """

    name: str
    architecture: str
    parameters: float | None
    gigabytes: float | None
    licence: str
    settings: str = ""
    shape: dict[str, Any] | None = None
    class_name: str = ""
    made_by: str = ""

    @property
    def has_blocks(self) -> bool:
        """Whether it attends in blocks."""
        return self.must_name_blocks or bool((self.shape or {}).get("block_size"))

    @property
    def must_name_blocks(self) -> bool:
        """Whether only the settings tell its blocks."""
        return self.settings.startswith("model.block_size")

    def config(self) -> DenoiserConfig | None:
        """Return a config of its size; None if that is not known."""
        return None if self.shape is None else config_class(self.architecture)(**self.shape)


def named(base: Path) -> Published | None:
    """Return the checkpoint that a folder is named after; None if there is none."""
    return next((row for row in published() if row.name.split("/")[-1] == base.name), None)


def by_class() -> dict[str, str]:
    """Return the architecture of each class whose files name another model_type."""
    return {row.class_name: row.architecture for row in published() if row.class_name}


def published() -> list[Published]:
    """Return all checkpoints that are known, smallest first.

    Raises:
        DopsdError: if the checkpoints.yaml of a plug-in is not one.
    """
    found = [
        row for name, package in ARCHITECTURES.packages.items() for row in _rows(name, package)
    ]
    return sorted(found, key=lambda row: (row.parameters or float("inf"), row.name))


@cache
def _rows(architecture: str, package: str) -> tuple[Published, ...]:
    try:
        spec = find_spec(package)  # does not import the package, which may need torch
    except Exception:  # of a plug-in's code; using the plug-in reports it
        return ()
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "checkpoints.yaml"
        if not path.is_file():
            continue
        try:
            rows = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) or {}
            return tuple(Published(name, architecture, **row) for name, row in rows.items())
        except (YAMLError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise DopsdError(
                f"{path}: expected a table of checkpoints with the fields"
                f" {', '.join(Published._fields[2:])} ({reason})",
                code=Code.PLUGIN_BROKEN,
            ) from error
    return ()
