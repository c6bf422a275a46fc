"""Architectures: folders of dopsd/models, and packages of the entry points `dopsd.models`.

A folder has `architecture.py`, which registers its config and model classes with transformers'
AutoConfig and AutoModelForMaskedLM under the folder's name (model_type "My-model" is the folder
my_model, and "a2d-llama" is a2d/llama). Files that name another architecture's model_type are told
by their class, which checkpoints.yaml has. The classes derive from those of denoiser.py; no code
outside the folder asks which architecture it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from dopsd.core.errors import Code, DopsdError
from dopsd.core.registry import Registry, abstract_members
from dopsd.models.checkpoint_files import AGAIN
from dopsd.models.policy import Attention

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import DenoiserConfig

# what transformers raises for values of a wrong kind
ODD = (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
ARCHITECTURES = Registry("dopsd.models", "architecture", marker="architecture", rooms=("a2d",))


def folder_name(model_type: str) -> str:
    """Return the folder of an architecture, by the model_type of its checkpoints."""
    return model_type.replace("-", "_").lower()


def architecture_of(folder: Path) -> str | None:
    """Return the folder in dopsd/models of a checkpoint's architecture; None without model_type."""
    try:
        raw = json.loads((folder / "config.json").read_bytes())
        model_type, classes = raw["model_type"], raw.get("architectures") or []
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    known = by_class()
    classes = classes if isinstance(classes, list) else [classes]
    name = next((known[kind] for kind in map(str, classes) if kind in known), None)
    name = name or folder_name(str(model_type))
    if name not in ARCHITECTURES.names:
        can_adapt = f"a2d_{name}" in ARCHITECTURES.names
        advice = "; `dopsd adapt` makes a base of it (dopsd's docs/adapt.md)" if can_adapt else ""
        raise Code.UNSUPPORTED_MODEL.error(
            f"{folder}/config.json: model_type {model_type!r} is not supported; there is"
            f" {', '.join(ARCHITECTURES.names)}; `dopsd models` lists bases{advice}"
        )
    return name


def config_class(name: str) -> type[DenoiserConfig]:
    """Return the config class of an architecture, by the name of its folder."""
    from transformers import CONFIG_MAPPING

    ARCHITECTURES.module(name, "architecture")
    known = {folder_name(str(model_type)): model_type for model_type in CONFIG_MAPPING}
    if name not in known:
        raise Code.PLUGIN_BROKEN.error(
            f"architecture {name}: its architecture.py registers no model_type of this name with"
            " AutoConfig"
        )
    kind: type[DenoiserConfig] = CONFIG_MAPPING[known[name]]  # type: ignore[assignment]
    return kind


def registering_module(config: DenoiserConfig) -> str:
    """Return the module whose import registers a config's architecture with transformers."""
    return f"{type(config).__module__.rpartition('.')[0]}.architecture"


def require_members(name: str, made: object, base: type) -> None:
    """Refuse a config or a model of an architecture that does not fit its base class."""
    kind = type(made)
    missing = abstract_members(kind) if isinstance(made, base) else [f"base class {base.__name__}"]
    if missing:
        raise Code.PLUGIN_BROKEN.error(
            f"architecture {name}: {kind.__name__} has no {', '.join(missing)}; add the members of"
            f" {base.__module__}.{base.__name__}"
        )


def read_config(folder: Path) -> DenoiserConfig:
    """Read config.json of a supported architecture."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    from dopsd.models.denoiser import DenoiserConfig

    name = architecture_of(folder)
    kind = None if name is None else config_class(name)
    try:
        if kind is None:  # transformers says what is wrong with the file
            config: DenoiserConfig = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        else:
            raw, _ = kind.get_config_dict(folder, local_files_only=True)
            if isinstance(raw.get("architectures"), str):  # huggingface_hub 1 takes a list alone
                raw["architectures"] = [raw["architectures"]]
            config = kind.from_dict(raw | {"model_type": kind.model_type})
    except DopsdError as error:  # of the fields
        raise DopsdError(f"{folder}/{error}", code=error.code) from error
    except (*ODD, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:120]
        raise Code.MODEL_CONFIG.error(
            f"{folder}/config.json: not a model's config ({reason}...); {AGAIN}"
        ) from error
    require_members(config.model_type, config, DenoiserConfig)
    return config


def config_of(model: ModelConfig) -> DenoiserConfig:
    """Read the config of the base that section `model` names, with its changes."""
    config = read_config(Path(model.path))
    if model.block_size:
        config.block_size = model.block_size
    if model.block_alignment:
        config.block_alignment = model.block_alignment
    if config.attention_pattern in config.attention_patterns:
        if config.block_size and config.output_shift:
            raise Code.UNSUPPORTED_MODEL.error(
                f"{model.path}/config.json: blocks of attention with shifted outputs are not"
                f" computed; {config.model_type} has both"
            )
        return config
    if config.block_size is None:
        raise Code.MODEL_CONFIG.error(
            f"{model.path}/config.json: no block_size, and {config.model_type} attends in blocks;"
            " set model.block_size to the tokens of a block"
        )
    raise Code.UNSUPPORTED_MODEL.error(
        f"model.block_size: {config.block_size}: in {config.model_type} every token sees every"
        " other; leave the key out"
    )


class Published(NamedTuple):
    """A published checkpoint, or one that a script of this project makes."""

    name: str  # its name on the Hugging Face hub; the name of its folder if it is not published
    architecture: str  # folder of dopsd/models, or a plug-in
    parameters: float | None  # number of weights; None: not known
    gigabytes: float | None  # of its weights in bfloat16; None: not known
    licence: str  # of the weights, or why it is not known
    settings: str = ""  # settings that it needs, as `dopsd params --set` takes them
    # fields of its config.json that decide its size; None: not known
    shape: dict[str, Any] | None = None
    # the class that its config.json names, if the model_type there may be another
    class_name: str = ""
    made_by: str = ""  # the script that makes it, if it is not published; or empty
    # where its training, and its sampler if that differs, count blocks of attention from
    blocks: str = ""

    @property
    def must_name_blocks(self) -> bool:
        """Whether only the settings tell its blocks."""
        return self.settings.startswith("model.block_size")

    def config(self) -> DenoiserConfig | None:
        """Return a config of its size; None if that is not known."""
        return None if self.shape is None else config_class(self.architecture)(**self.shape)


class Traits(NamedTuple):
    """What an architecture computes: `computes` of its checkpoints.yaml, or what its class says."""

    attention_patterns: Sequence[Attention] = ("bidirectional",)  # as in DenoiserConfig
    output_shift: int | None = 0  # as there; None: the files of its checkpoints say it
    has_fused_kernels: bool = False  # as there


def traits(name: str) -> Traits:
    """Return what an architecture computes.

    Only one whose checkpoints.yaml does not say it is imported, which takes seconds.
    """
    return _file(name)[0] or computed_by(config_class(name))


def computed_by(kind: type[DenoiserConfig]) -> Traits:
    """Return what an architecture computes, by its config class."""
    shift = None if "output_shift" in kind.in_file else kind.output_shift
    return Traits(kind.attention_patterns, shift, kind.has_fused_kernels)


def named(base: Path) -> Published | None:
    """Return the checkpoint that a folder is named after; None if there is none."""
    return next((row for row in published() if row.name.split("/")[-1] == base.name), None)


def download(base: Path) -> str:
    """Return the command that downloads a base into its folder; without a name for unknown ones."""
    row = named(base)
    return f"hf download {row.name if row else 'NAME'} --local-dir {base} --exclude '*.py'"


def by_class() -> dict[str, str]:
    """Return the architecture of each class whose files name another model_type."""
    return {row.class_name: row.architecture for row in published() if row.class_name}


def published() -> list[Published]:
    """Return all checkpoints that are known, smallest first."""
    found = [row for name in ARCHITECTURES.names for row in _file(name)[1]]
    return sorted(found, key=lambda row: (row.parameters or float("inf"), row.name))


@cache
def _file(architecture: str) -> tuple[Traits | None, tuple[Published, ...]]:
    path = ARCHITECTURES.path(architecture, "checkpoints.yaml")
    if path is None:
        return None, ()
    try:
        rows = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) or {}
        computes = rows.pop("computes", None)
        stated = None if computes is None else Traits(**computes)
        if stated and not {*stated.attention_patterns} <= {*get_args(Attention)}:
            raise ValueError(f"attention_patterns: {stated.attention_patterns}")
        return stated, tuple(Published(name, architecture, **row) for name, row in rows.items())
    except (YAMLError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise Code.PLUGIN_BROKEN.error(
            f"{path}: expected a table of checkpoints with the fields"
            f" {', '.join(Published._fields[2:])}, and `computes` with"
            f" {', '.join(Traits._fields)} ({reason})"
        ) from error
