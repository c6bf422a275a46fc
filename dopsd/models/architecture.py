"""Architectures: folders of dopsd/models, and packages of the entry points `dopsd.models`.

A folder has `architecture.py`, which registers its config and model classes with transformers'
AutoConfig and AutoModelForMaskedLM under the folder's name (model_type "My-model" is the folder
my_model). Files that name another architecture's model_type are told by their class, which
checkpoints.yaml has. The classes derive from those of denoiser.py; no code outside the folder asks
which architecture it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.registry import Registry, abstract_members
from dopsd.models.checkpoint_files import AGAIN

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import DenoiserConfig

# what transformers raises for values of a wrong kind
ODD = (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
ARCHITECTURES = Registry("dopsd.models", "architecture", marker="architecture")


def folder_name(model_type: str) -> str:
    """Return the folder of an architecture, by the model_type of its checkpoints."""
    return model_type.replace("-", "_").lower()


def architecture_of(folder: Path) -> str | None:
    """Return the architecture of a checkpoint, by the name of its folder in dopsd/models.

    Args:
        folder: the checkpoint, whose config.json names its model_type and its class.

    Returns:
        The name; None if config.json names no model_type.

    Raises:
        DopsdError: if there is no such architecture; the message lists those that exist.
    """
    from dopsd.models.published import by_class  # it imports this module

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
        raise DopsdError(
            f"{folder}/config.json: model_type {model_type!r} is not supported; there is"
            f" {', '.join(ARCHITECTURES.names)}; `dopsd models` lists bases",
            code=Code.UNSUPPORTED_MODEL,
        )
    return name


def config_class(name: str) -> type[DenoiserConfig]:
    """Return the config class of an architecture, by the name of its folder."""
    from transformers import CONFIG_MAPPING

    ARCHITECTURES.module(name, "architecture")
    known = {folder_name(str(model_type)): model_type for model_type in CONFIG_MAPPING}
    if name not in known:
        raise DopsdError(
            f"architecture {name}: its architecture.py registers no model_type of this name with"
            " AutoConfig",
            code=Code.PLUGIN_BROKEN,
        )
    kind: type[DenoiserConfig] = CONFIG_MAPPING[known[name]]  # type: ignore[assignment]
    return kind


def registering_module(config: DenoiserConfig) -> str:
    """Return the module whose import registers a config's architecture with transformers."""
    return f"{type(config).__module__.rpartition('.')[0]}.architecture"


def require_members(name: str, made: object, base: type) -> None:
    """Refuse a config or a model of an architecture that does not fit its base class.

    Args:
        name: the architecture, for messages.
        made: the config or the model.
        base: the class of denoiser.py that it must derive from.

    Raises:
        DopsdError: if `made` is not of this class, or lacks one of its abstract methods.
    """
    kind = type(made)
    missing = abstract_members(kind) if isinstance(made, base) else [f"base class {base.__name__}"]
    if missing:
        raise DopsdError(
            f"architecture {name}: {kind.__name__} has no {', '.join(missing)}; add the members of"
            f" {base.__module__}.{base.__name__}",
            code=Code.PLUGIN_BROKEN,
        )


def read_config(folder: Path) -> DenoiserConfig:
    """Read config.json of a supported architecture.

    Raises:
        DopsdError: if the file is damaged, or the architecture unknown.
    """
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
        raise DopsdError(
            f"{folder}/config.json: not a model's config ({reason}...); {AGAIN}",
            code=Code.MODEL_CONFIG,
        ) from error
    require_members(config.model_type, config, DenoiserConfig)
    return config


def config_of(model: ModelConfig) -> DenoiserConfig:
    """Read the config of the base that section `model` names, with its changes.

    Raises:
        DopsdError: if the file is damaged, or the architecture has no such attention.
    """
    config = read_config(Path(model.path))
    if model.block_size:
        config.block_size = model.block_size
    if model.block_alignment:
        config.block_alignment = model.block_alignment
    if config.attention_pattern in config.attention_patterns:
        if config.block_size and config.output_shift:
            raise DopsdError(
                f"{model.path}/config.json: blocks of attention with shifted outputs are not"
                f" computed; {config.model_type} has both",
                code=Code.UNSUPPORTED_MODEL,
            )
        return config
    if config.block_size is None:
        raise DopsdError(
            f"{model.path}/config.json: no block_size, and {config.model_type} attends in blocks;"
            " set model.block_size to the tokens of a block",
            code=Code.MODEL_CONFIG,
        )
    raise DopsdError(
        f"model.block_size: {config.block_size}: in {config.model_type} every token sees every"
        " other; leave the key out",
        code=Code.UNSUPPORTED_MODEL,
    )
