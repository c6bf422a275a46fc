"""`dopsd train --task sudoku --method d_opsd --seed 0`: one training run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dopsd.training.resume import is_done, write_stage_outputs
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import PHASES
from dopsd.training.start import link_start

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task: str, method: str, seed: int, other_code: str = "stop") -> None:
    """Train one run, or continue it."""
    tracked_by = params.file if params.tracking.enabled else None
    settings = params.run(task, method, seed)
    if method not in PHASES:  # their starts are in work/, which no stage of DVC depends on
        link_start(settings)
    identity = identify(settings)
    if is_done(identity):  # before torch is imported, which takes seconds
        if os.environ.get("RANK", "0") == "0":
            write_stage_outputs(identity)
        return
    from dopsd.training.train import train

    also = (params.tracking.experiment, params.tracking.also)
    train(identity, tracked_by, other_code, params.checkpoints.remote, also)
