"""Space that runs take on a disk, from shapes: checkpoints and their copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import kind_of
from dopsd.pipeline.memory_model import trains_all
from dopsd.training.checkpoint import KEPT_RESUMABLE

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.pipeline.shape import Shape
    from dopsd.training.run_settings import RunSettings

NUMBER = 4  # bytes of a weight in a checkpoint, and of each of its two moments


def checkpoint_bytes(params: Params, shape: Shape) -> int:
    """Return the bytes of the weights in a checkpoint of the matrix's first method."""
    return NUMBER * (shape.parameters if trains_all(params) else shape.lora_parameters)


def places(params: Params) -> list[str]:
    """Return where each checkpoint has a copy; MLflow has those of adapters."""
    has_mlflow = params.tracking.enabled and not trains_all(params)
    return ["work/", "runs/", "DVC's cache", *(["MLflow"] if has_mlflow else [])]


def saved(params: Params) -> int:
    """Return the number of checkpoints of a run."""
    return -(-params.train.updates // params.train.checkpoint_every)


def run_bytes(params: Params, shape: Shape) -> int:
    """Return the bytes of a run of the matrix's first method, without its answers.

    The selected checkpoint has one copy more, and the newest keep what resuming needs.
    """
    count = saved(params)
    config = vars(params.method)[kind_of(params.matrix.methods[0])]
    kept = 3 if vars(config).get("teacher") == "ema" else 2  # moments, and a moving average
    copies = len(places(params)) * count + 1 + kept * min(count, KEPT_RESUMABLE)
    return checkpoint_bytes(params, shape) * copies


def line(params: Params, shape: Shape) -> str:
    """Return a line that says what a run takes, for an estimate."""
    *others, last = places(params)
    return (
        f"disk of each run: about {run_bytes(params, shape) / 1e9:.1f} GB: {saved(params)}"
        f" checkpoints of {checkpoint_bytes(params, shape) / 1e9:.2f} GB in {', '.join(others)}"
        f" and {last}, and what resuming needs"
    )


def missing_runs(params: Params) -> list[RunSettings]:
    """Return the runs of the matrix that were not trained to their end."""
    return [run for run in params.runs if not (run.key.folder / "train.json").is_file()]


def matrix_bytes(params: Params) -> int:
    """Return the bytes of the missing runs of the matrix.

    Raises:
        DopsdError: if the size of a base is not known.
    """
    from dopsd.pipeline.cost import size_of
    from dopsd.pipeline.shape import Shape, lora_parameters

    total = 0
    for run in missing_runs(params):
        cell = {"tasks": [run.key.task], "methods": [run.key.method]}
        matrix = params.matrix.model_copy(update=cell)
        own = params.model_copy(update={"matrix": matrix}).of(run.key.method)
        config = size_of(run.model)
        total += run_bytes(own, Shape(config, lora_parameters(config, own)))
    return total
