"""Whether the settings fit the attention of their bases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import blocks_fault
from dopsd.models.architecture import config_of

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
        lengths = {"sampling": params.sampling.block_length}
        lengths |= {
            f"evaluate.protocols.{protocol}": params.evaluate.protocols[protocol].block_length
        }
        for key, length in lengths.items():
            if length != size:
                line = f"{key}.block_length: {length}: {model.path} attends in blocks of {size};"
                found[f"{line} set it to {size}"] = None
        for method in params.matrix.methods:
            run = params.run(task, method, params.matrix.seeds[0])
            if fault := blocks_fault(method, run.algorithm):
                found[fault] = None
    return list(found)
