"""`dopsd train --task sudoku --method d_opsd --seed 0`: one training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.training.start import link_start
from dopsd.training.train import train

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task: str, method: str, seed: int, other_code: str = "stop") -> None:
    """Train one run, or continue it.

    Args:
        params: All settings.
        task: Task of the run.
        method: Method of the run.
        seed: Seed of the run.
        other_code: What to do with a run that other code began: stop, continue or anew.
    """
    tracked_by = params.file if params.tracking.enabled else None
    settings = params.run(task, method, seed)
    link_start(settings)
    train(settings, tracked_by, other_code, remote=params.checkpoints.remote)
