"""Whether the settings fit the attention of their bases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import blocks_fault
from dopsd.models.architecture import config_of
from dopsd.rollout.denoising_state import blocks_misfit

if TYPE_CHECKING:
    from dopsd.config.params import Params


def block_faults(params: Params) -> list[str]:
    """Return a line for each setting of the matrix that does not fit a block-causal base.

    Bases that are not there yet have no faults.

    Raises:
        DopsdError: if the config of a base is damaged.
    """
    found: dict[str, None] = {}  # each line once, in order
    protocol = params.select.protocol
    for task in params.matrix.tasks:
        model = params.model_of(task)
        if not (Path(model.path) / "config.json").is_file():
            continue
        size = config_of(model).block_size
        if size is None:
            continue
        lengths = {
            "sampling": params.sampling,
            f"evaluate.protocols.{protocol}": params.evaluate.protocols[protocol],
        }
        for key, sampling in lengths.items():
            fault = blocks_misfit(size, sampling.gen_length, sampling.block_length)
            if fault:
                found[f"{key}: {model.path}: {fault}"] = None
        for method in params.matrix.methods:
            run = params.run(task, method, params.matrix.seeds[0])
            if fault := blocks_fault(method, run.algorithm):
                found[fault] = None
    return list(found)
