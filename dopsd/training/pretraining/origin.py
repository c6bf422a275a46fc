"""Record what an embedded base was made from, so that it is retrained only on request.

The record holds settings and digests of data and files. The number `pretrain.recipe` stands for
the code: a base behaves like a downloaded checkpoint, not like a cached result.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from dopsd.core.errors import Code
from dopsd.core.files import write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import BASES, ORIGIN
from dopsd.core.settings import Section
from dopsd.tasks.common.storage import DATA
from dopsd.training.pretraining.config import BaseSettings, PretrainConfig

ALLOWANCE = "DOPSD_ALLOW_RETRAIN"  # the environment variable that allows retraining
FORCE = "force"  # retrain even a base that matches
MINUTES = 3  # time to pretrain the default shape on two CPU cores


class Origin(Section):
    """Contents of base/<task>/pretrain.json."""

    settings: dict[str, Any]  # by key of params.yaml
    data: str  # digest of the training problems
    files: dict[str, str]  # digest of each file that pretraining wrote


def base_folder(task: str, block_size: int | None = None) -> Path:
    """Return the folder of a task's embedded base.

    It is base/<task>, or base/<task>_blocks of a block-causal one.
    """
    return BASES / (f"{task}_blocks" if block_size else task)


def settings(base: BaseSettings) -> dict[str, Any]:
    """Return the settings that decide a base's weights, by key of params.yaml."""
    unset = {"tasks", *(() if base.shape.block_size else ("block_size",))}
    shape = {
        f"pretrain.{key}": value for key, value in base.shape.model_dump(exclude=unset).items()
    }
    return shape | {
        "sampling.gen_length": base.gen_length,
        "model.prompt_style": base.prompt_style,
    }


def problems_of(task: str) -> Path:
    """Return the file of a task's training problems."""
    return DATA / task / "train.jsonl"


def note(base: BaseSettings, task: str, folder: Path) -> None:
    """Write into a new base's folder what the base was made from."""
    files = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != ORIGIN}
    contents = Origin(settings=settings(base), data=sha256(problems_of(task)), files=files)
    write_json(folder / ORIGIN, contents.model_dump())


def mismatch(base: BaseSettings, task: str) -> str | None:
    """Compare a task's base with what these settings and data would make.

    Returns:
        One line with the difference, how to keep the base and how to retrain it; None if the base
        matches or does not exist.
    """
    folder = base_folder(task, base.shape.block_size)
    if not any(folder.glob("*.safetensors")) and not (folder / ORIGIN).exists():
        return None
    difference = _difference(base, task, folder)
    if difference is None:
        return None
    remedy = (
        f"{ALLOWANCE}=1 dopsd run (or dvc repro pretrain; in a flow: allow_retrain=true) to retrain"
        f" the base (about {_minutes(base)} min)"
    )
    return f"pretrain: {difference}, or run {remedy}."


def _difference(base: BaseSettings, task: str, folder: Path) -> str | None:
    """Return what differs and how to keep the base, or None; missing data does not differ."""
    drops = f"git checkout -- {folder} params.yaml also discards every other change"
    try:
        recorded = Origin.model_validate_json((folder / ORIGIN).read_bytes())
    except (OSError, ValueError):
        lost = f"{folder / ORIGIN}: missing or damaged, so the origin of {folder} is unknown"
        return f"{lost}. Run git checkout -- {folder} to restore the base"
    for name, digest in recorded.files.items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest() == digest:
                return (
                    f"{path}: git gave it other line ends (core.autocrlf). Write `* -text` to"
                    " .gitattributes, commit that, and clone again"
                )
            return (
                f"{path}: not the file that pretraining wrote. Run git checkout --"
                f" {folder} to restore the file"
            )
    requested = settings(base)
    mismatched = [
        key
        for key in requested | recorded.settings
        if requested.get(key, "nothing") != recorded.settings.get(key, "nothing")
    ]
    if mismatched:
        listed = ", ".join(
            f"{key} {recorded.settings.get(key, 'unset')} (params.yaml:"
            f" {requested.get(key, 'unset')})"
            for key in mismatched
        )
        return f"{folder} was made with {listed}. To keep the base, set that back ({drops})"
    problems = problems_of(task)
    if problems.is_file() and sha256(problems) != recorded.data:
        restore = f"set section data.{task} of params.yaml back and run dvc repro prepare"
        return f"{folder} was made from another {problems}. To keep the base, {restore} ({drops})"
    return None


def _minutes(base: BaseSettings) -> int:
    """Estimate the time of pretraining from the weights and sequences of all updates."""

    def work(shape: PretrainConfig, updates: int) -> int:
        return (
            updates
            * shape.batch_size
            * shape.n_layers
            * shape.d_model
            * (4 * shape.d_model + 3 * shape.mlp_hidden_size)
        )

    return max(
        1,
        round(MINUTES * work(base.shape, base.shape.updates) / work(PretrainConfig(), 700)),
    )


def allowance() -> str:
    """Return DOPSD_ALLOW_RETRAIN: '' (no), '1' (a base that does not match) or 'force' (any)."""
    value = os.environ.get(ALLOWANCE, "").removeprefix("0")
    if value not in ("", "1", FORCE):
        raise Code.VARIABLE.error(
            f"{ALLOWANCE}={value}: expected 1 (retrain a base that does not match) or {FORCE}"
            " (retrain any base)"
        )
    return value
