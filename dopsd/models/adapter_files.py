"""The files of a checkpoint, checked against their digests: an adapter, or all weights.

A checkpoint of all weights has config.json, shards, and their index with a digest of each shard, so
that one file, the adapter or the index, identifies the weights of either kind.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import WORK, link, object_in, parse_object, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.progress import log
from dopsd.core.tensor_files import load_tensors
from dopsd.models.checkpoint_files import INDEX, SHARDS, header

if TYPE_CHECKING:
    from pydantic import ValidationError
    from torch import Tensor

    from dopsd.models.config import AdapterConfig

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
DIGESTS = "digests.json"


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests of a checkpoint's files, by name; none if they are missing or damaged."""
    return object_in(folder / DIGESTS)


def write_digests(folder: Path) -> None:
    """Write the SHA-256 digests of a folder's files into the folder."""
    write_json(
        folder / DIGESTS, {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.name != DIGESTS}
    )


def has_all_weights(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of all weights, and not an adapter."""
    return (folder / INDEX).is_file() and not (folder / ADAPTER).is_file()


def identity(folder: Path) -> Path:
    """Return the file whose digest identifies a checkpoint's weights."""
    return folder / (INDEX if has_all_weights(folder) else ADAPTER)


def checkpoint_names(folder: Path) -> list[str]:
    """Return the names of all files that make a checkpoint: config first, then weights."""
    if has_all_weights(folder):
        return [MODEL_CONFIG, INDEX, *sorted(shard_digests(folder))]
    return [ADAPTER_CONFIG, ADAPTER]


def shard_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each shard of a checkpoint of all weights."""
    try:
        index = parse_object((folder / INDEX).read_bytes(), INDEX)
        digests: dict[str, str] = index["metadata"][SHARDS]
        is_whole = {*index["weight_map"].values()} == digests.keys()
    except (OSError, DopsdError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole or any("/" in name for name in digests):
        raise Code.ADAPTER_DAMAGED.error(
            f"{folder / INDEX}: no digest of each shard; name a checkpoint that dopsd wrote"
        )
    return digests


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read the adapter weights of a published or scratch checkpoint, by peft's names."""
    path = _file_of(folder, ADAPTER)
    check_sealed(folder, ADAPTER)
    return load_tensors(path)


def check_shards(folder: Path) -> None:
    """Refuse a checkpoint of all weights whose files do not match their digests."""
    check_sealed(folder, INDEX)
    for name, digest in shard_digests(folder).items():
        require_digest(folder / name, digest)


def check_sealed(folder: Path, name: str) -> None:
    """Refuse a file that does not match its digest in a folder with digests."""
    if (folder / DIGESTS).is_file():
        require_digest(folder / name, read_digests(folder).get(name))


def require_digest(path: Path, digest: str | None) -> None:
    """Refuse a file that is missing or does not match its digest."""
    if not path.is_file() or sha256(path) != digest:
        raise Code.ADAPTER_DAMAGED.error(
            f"{path}: does not match its digest; run `{_remedy(path.parent)}` to restore the file"
        )


def _remedy(folder: Path) -> str:
    """Return the command that restores a checkpoint; DVC keeps none of those in train/."""
    match folder.parts[-6:]:
        case ("runs", task, method, seed, "train", _):
            return f"dopsd train --task {task} --method {method} --seed {seed}"
    return f"dvc checkout --force {folder}"


# filled with the names of the block list and of the layers: a head of the same name never matches
TARGETS = r".*\.{}\.\d+\.({})"
NESTED_TARGETS = r".*\.{}\.\d+\.\w+\.({})"  # of blocks that keep layers in parts: self_attn, mlp
# fields of peft's LoraConfig; all others change what is computed, and none of them may be set
COMPUTED = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
HARMLESS = (  # they describe the file, or serve a field that is refused
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "runtime_config", "megatron_core", "qalora_group_size", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
)
UNSET: tuple[object, ...] = (None, False, "", [], {})
ALLOWED = {  # values that leave the base as it is: not pissa, olora, corda, loftq, lora_ga
    "bias": (*UNSET, "none"),
    "init_lora_weights": (*UNSET, True, "gaussian", "orthogonal", "eva"),
}


def _read_config(folder: Path) -> dict[str, Any]:
    """Read peft's settings of the adapter in this folder."""
    path = _file_of(folder, ADAPTER_CONFIG)
    try:
        return parse_object(path.read_bytes(), path)
    except DopsdError as error:
        raise Code.ADAPTER_DAMAGED.error(str(error)) from error


def _file_of(folder: Path, name: str) -> Path:
    """Return a file of an adapter, which is there: reading a pipe or a device would never end."""
    if not (folder / name).is_file():
        raise Code.NO_ADAPTER.error(f"{folder}: no {name}; name the folder of a checkpoint")
    return folder / name


def lora_of(folder: Path) -> AdapterConfig:
    """Return the LoRA settings with which a checkpoint was trained, from peft's file."""
    from pydantic import ValidationError

    from dopsd.models.config import AdapterConfig

    settings = _read_config(folder)
    unsupported = [
        f"{name} {value!r:.40}"
        for name, value in sorted(settings.items())
        if name not in (*COMPUTED, *HARMLESS) and value not in ALLOWED.get(name, UNSET)
    ]
    if unsupported or settings.get("peft_type", "LORA") != "LORA":
        raise Code.ADAPTER_KIND.error(
            f"{folder / ADAPTER_CONFIG}: {', '.join(unsupported) or settings['peft_type']} is"
            " set; only plain LoRA is supported"
        )
    try:
        config = AdapterConfig(
            r=settings["r"],
            alpha=settings["lora_alpha"],
            dropout=settings.get("lora_dropout", 0.0),
            targets=target_names(settings["target_modules"]),
        )
    except (KeyError, ValidationError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else f"has {_faults(error)}"
        raise Code.ADAPTER_DAMAGED.error(
            f"{folder / ADAPTER_CONFIG} {problem}; name a checkpoint written by dopsd or peft"
        ) from error
    _check_rank(config.r, folder)
    _note_base(folder, str(settings.get("base_model_name_or_path") or "base"))
    return config


@cache
def _note_base(folder: Path, name: str) -> None:
    if name != "base":  # which dopsd writes
        log(f"{folder}: trained on {name:.80}, as its file says; model.path must be that base")


def shape_of(folder: Path) -> AdapterConfig | None:
    """Return the LoRA settings of a checkpoint; None if it holds all weights."""
    if not has_all_weights(folder):
        return lora_of(folder)
    shard_digests(folder)
    return None


def check_shape(folder: Path, r: int, alpha: float, targets: list[str]) -> None:
    """Refuse an adapter that was trained with another rank, scaling or list of targets.

    Args:
        folder: the checkpoint of the adapter; only its config and headers are read.
        alpha: as in `AdapterConfig`.
    """
    saved = lora_of(folder)
    wanted = {"r": r, "alpha": alpha, "targets": sorted(targets)}
    trained = {"r": saved.r, "alpha": saved.alpha, "targets": sorted(saved.targets)}
    mismatched = [
        f"{name} {trained[name]} (train.lora gives {value})"
        for name, value in wanted.items()
        if trained[name] != value
    ]
    if mismatched:
        raise Code.ADAPTER_MISFIT.error(
            f"{folder}: the adapter was trained with {', '.join(mismatched)}; set train.lora to"
            " those values"
        )


def _check_rank(rank: int, folder: Path) -> None:
    """Refuse a rank that the weights do not have, before memory is allocated for it."""
    shapes = header(_file_of(folder, ADAPTER))
    mismatched = [
        name for name, shape in shapes.items() if ".lora_A." in name and shape[:1] != (rank,)
    ]
    if mismatched:
        raise Code.ADAPTER_DAMAGED.error(
            f"{folder}: {ADAPTER_CONFIG} has r {rank}, but {mismatched[0]!r} in {ADAPTER} has"
            " another rank; restore both files"
        )


def target_names(target_modules: str | list[str]) -> list[str]:
    """Return the module names that an adapter targets.

    Args:
        target_modules: a list of names, or the pattern that `attach` writes; for any other pattern
            the result is empty.
    """
    if not isinstance(target_modules, str):
        return target_modules
    for pattern in (TARGETS, NESTED_TARGETS):
        written = re.escape(pattern).replace(r"\{\}", r"([\w|]+)")
        if match := re.fullmatch(written, target_modules):
            return match[2].split("|")
    return []


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{fault['loc'][0]} {fault['input']!r}: {fault['msg']}" for fault in error.errors()
    )


MANIFEST = "checkpoints.json"  # digests of the checkpoints beside it, by folder


def copy_checkpoint(source: Path, target: Path) -> None:
    """Link a checkpoint's files into a new folder, without those that only resuming needs."""
    target.mkdir()
    for name in checkpoint_names(source):
        link(source / name, target / name)
    write_digests(target)


def run_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a finished run that are here, oldest first.

    After `dvc checkout` its folder may hold those of another run; the right ones may be in work/.
    """
    scratch = WORK / object_in(folder.with_suffix(".json")).get("fingerprint", "")
    steps = [
        next((p / name for p in (folder, scratch) if _holds(p / name, digest)), None)
        for name, digest in sorted(object_in(folder / MANIFEST).items())
    ]
    return [step for step in steps if step]


def _holds(step: Path, digest: str) -> bool:
    path = identity(step)
    return path.is_file() and read_digests(step).get(path.name) == digest
