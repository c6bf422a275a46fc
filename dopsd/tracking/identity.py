"""The MLflow run of a training run: its experiment, name, tags and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.palette import run_colour
from dopsd.tracking.client import Identity, tracking_uri
from dopsd.tracking.dashboard import COLOUR_TAG
from dopsd.tracking.model_card import variant
from dopsd.training.run_identity import first_code, scratch_folder

if TYPE_CHECKING:
    from dopsd.tracking.config import TrackingConfig
    from dopsd.training.run_settings import RunSettings


def identity(run: RunSettings, tracking: TrackingConfig) -> Identity:
    """Return the MLflow run of a training run; tags and parameters are named alike for all."""
    key, train = run.key, run.train.model_dump()
    sections = {
        "sampling": run.sampling.model_dump(),
        "train": train,
        "model": run.model.model_dump(),
        "method": run.algorithm.model_dump(),
    }
    values = {
        f"{s}.{k}": v for s, section in sections.items() for k, v in section.items() if k != "lora"
    }
    values |= {f"lora.{k}": v for k, v in (train["lora"] if run.train.adapter else {}).items()}
    names = {"task": key.task, "method.name": key.method, "seed": str(key.seed)}
    tags = {"task": key.task, "method": key.method, "seed": str(key.seed)}
    tags |= {"variant": name} if (name := variant(run)) else {}
    return Identity(
        tracking_uri(tracking.uri),
        tracking.experiment,
        key.stage,
        f"{scratch_folder(run).name}-{first_code(run)}",
        tags
        | {"model": run.model.path, "source": "trained"}
        | {COLOUR_TAG: run_colour(ALGORITHMS, key.method, key.seed)},
        names | {k: str(v) for k, v in values.items()},
    )
