"""Find and check training folders of older releases.

These releases wrote no run.json and named a folder by a hash of settings and code together.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import WORK
from dopsd.core.paths import RUNS
from dopsd.models.adapter_files import ADAPTER, has_all_weights, lora_of
from dopsd.models.registry import read_config
from dopsd.training import checkpoint
from dopsd.training.resuming import object_of, record_of

if TYPE_CHECKING:
    from dopsd.training.run_settings import RunSettings

NAME = re.compile("train-[0-9a-f]{16}")  # a folder of an older release


def older_folders(run: RunSettings) -> dict[Path, int]:
    """Return the older folders whose adapters fit this run, with the last update of each."""
    adopted = {record_of(path).get("adopted") for path in WORK.glob("train-*")}
    owners = {
        object_of(path).get("fingerprint"): path.parent for path in RUNS.glob("*/*/*/train.json")
    }
    folders = [
        path
        for path in sorted(WORK.glob("train-*"))
        if NAME.fullmatch(path.name) and path.name not in adopted
    ]
    candidates = [
        path for path in folders if owners.get(path.name, run.key.folder) == run.key.folder
    ]
    last_steps = {
        path: step
        for path in candidates
        if (step := _last_checkpoint(path)) and misfit(run, step) is None
    }
    return {path: int(step.name[5:]) for path, step in last_steps.items()}


def _last_checkpoint(folder: Path) -> Path | None:
    usable = [step for step in sorted(folder.glob("step-??????")) if checkpoint.fault(step) is None]
    return usable[-1] if usable else None


def misfit(run: RunSettings, step: Path) -> str | None:
    """Return how a checkpoint's adapter differs from these settings, or None if it fits."""
    from safetensors import safe_open

    expected = run.train.adapter
    if expected is None or has_all_weights(step):
        return f"other weights than train.weights {run.train.weights}"
    saved, base_config = lora_of(step), read_config(Path(run.model.path))
    for name in ("r", "alpha", "dropout"):
        if vars(saved)[name] != vars(expected)[name]:
            return f"lora.{name} {vars(saved)[name]}"
    if sorted(saved.targets) != sorted(expected.targets):
        return f"lora.targets {', '.join(saved.targets)}"
    with safe_open(step / ADAPTER, "pt") as tensors:
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    blocks = {match[1] for name in shapes if (match := re.search(r"\.(\d+)\.", name))}
    widths = {
        name.split(".lora_A")[0].rsplit(".", 1)[1]: shape[1]
        for name, shape in shapes.items()
        if ".lora_A" in name
    }
    expected_widths = {name: shape[0] for name, shape in base_config.linear_shapes().items()}
    if len(blocks) != base_config.n_layers or not widths.items() <= expected_widths.items():
        return f"a base of {len(blocks)} layers"
    return None


def refuse_misfit(run: RunSettings, folder: Path) -> None:
    """Check that the run can adopt an older folder.

    Raises:
        DopsdError: if the folder has no intact checkpoint, or an adapter of other settings.
    """
    step = _last_checkpoint(folder)
    if step is None:
        raise DopsdError(
            f"--adopt {folder}: no intact checkpoint; name a folder work/train-... of an older"
            " release",
            code=Code.ADOPT,
        )
    if difference := misfit(run, step):
        raise DopsdError(
            f"--adopt {folder}: the adapter has {difference}, unlike the settings of {run.key};"
            " name another folder",
            code=Code.ADOPT,
        )
