"""Whether the settings fit the attention of their bases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import blocks_fault
from dopsd.rollout.blocks import blocks_misfit

if TYPE_CHECKING:
    from dopsd.config.params import Params


def block_faults(params: Params) -> list[str]:
    """Return a line for each setting of the matrix that does not fit a block-causal base.

    Bases that are not there yet have no faults, and neither have those whose config.json names no
    block, as LLaDA2.0's: training refuses what does not fit them.
    """
    found: dict[str, None] = {}  # each line once, in order
    protocol = params.select.protocol
    for task in params.matrix.tasks:
        model = params.model_of(task)
        size = model.block_size or _block_size(Path(model.path) / "config.json")
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


def _block_size(path: Path) -> int | None:
    """Return the block_size of a config.json; None if it has none, is damaged or is not there."""
    try:
        size = json.loads(path.read_bytes()).get("block_size")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # loading the base reports what is wrong with the file
    return size if isinstance(size, int) and size > 0 else None
