"""What base/<task>/ was made from: settings, data and files, noted in it, so that it is never made
again without leave.

The code's part is the number `pretrain.recipe`: a base behaves like a downloaded checkpoint, not
like a cached result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import BASES, ORIGIN, is_base
from dopsd.core.settings import Section
from dopsd.tasks.common.storage import DATA
from dopsd.training.pretrain_config import BaseSettings, PretrainConfig

ALLOWANCE = "DOPSD_ALLOW_RETRAIN"
FORCE = "force"  # also a base that matches
MINUTES = 3  # the default shape on two CPU cores


class Origin(Section):
    """Contents of base/<task>/pretrain.json."""

    settings: dict[str, Any]
    data: str  # digest of the training problems
    files: dict[str, str]  # digests of what pretraining wrote


def place(task: str) -> Path:
    """Return the folder of a task's embedded base: `base` itself in a project where release 0.1
    made it.
    """
    return BASES if is_base(BASES) else BASES / task


def settings(base: BaseSettings) -> dict[str, Any]:
    """What decides the base's numbers beside its data, by key of params.yaml."""
    shape = {
        f"pretrain.{key}": value for key, value in base.shape.model_dump(exclude={"tasks"}).items()
    }
    return shape | {
        "sampling.gen_length": base.gen_length,
        "model.prompt_style": base.prompt_style,
    }


def problems_of(task: str) -> Path:
    return DATA / task / "train.jsonl"


def note(base: BaseSettings, task: str, folder: Path) -> None:
    """Write into a new base what it was made from."""
    files = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != ORIGIN}
    contents = Origin(settings=settings(base), data=sha256(problems_of(task)), files=files)
    write_json(folder / ORIGIN, contents.model_dump())


def mismatch(base: BaseSettings, task: str) -> str | None:
    """Why a task's base is not what these settings and data make, and both ways out; None where it
    is, or there is none.
    """
    folder = place(task)
    if not any(folder.glob("*.safetensors")) and not (folder / ORIGIN).exists():
        return None
    difference = _difference(base, task, folder)
    if difference is None:
        return None
    remedy = (
        f"{ALLOWANCE}=1 dvc repro pretrain (in a flow: allow_retrain=true) to make it again (about"
        f" {_minutes(base)} min)"
    )
    return f"pretrain: {difference}, or {remedy}."


def _difference(base: BaseSettings, task: str, folder: Path) -> str | None:
    """What differs, and how to keep the base; data that is not there cannot differ."""
    drops = f"git checkout -- {folder} params.yaml drops every other change too"
    try:
        recorded = Origin.model_validate_json((folder / ORIGIN).read_bytes())
    except (OSError, ValueError):
        lost = f"{folder / ORIGIN}: missing or damaged, so nothing says what {folder} was made from"
        return f"{lost}. Run git checkout -- {folder}"
    for name, digest in recorded.files.items():
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            return (
                f"{folder / name}: not the file that pretraining wrote. Run git checkout --"
                f" {folder} to restore it"
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
        return f"{folder} was made with {listed}. To keep it, set that back ({drops})"
    problems = problems_of(task)
    if problems.is_file() and sha256(problems) != recorded.data:
        restore = f"set section data.{task} of params.yaml back and run dvc repro prepare"
        return f"{folder} was made from another {problems}. To keep it, {restore} ({drops})"
    return None


def _minutes(base: BaseSettings) -> int:
    """By the weights that every update's tokens go through."""

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
    """Whether a base that is there may be made again: "" (no), "1" (where it does not match) or
    "force".
    """
    value = os.environ.get(ALLOWANCE, "").removeprefix("0")
    if value not in ("", "1", FORCE):
        raise DopsdError(
            f"{ALLOWANCE}={value}: expected 1 (make a base that does not match again) or {FORCE}"
            " (any)"
        )
    return value
