"""Whether the settings fit the attention of their bases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import blocks_fault
from dopsd.core.errors import DopsdError
from dopsd.models.config import ModelConfig
from dopsd.models.registry import Published, architecture_of, config_class, named, published
from dopsd.rollout.config import blocks_misfit

if TYPE_CHECKING:
    from dopsd.config.params import Params


def block_faults(params: Params) -> list[str]:
    """Return a line for each setting of the matrix that does not fit a block-causal base.

    Of a base that is not there yet, only what its name tells is known.
    """
    found: dict[str, None] = {}  # each line once, in order
    for task in params.matrix.tasks:
        model = params.model_of(task)
        found |= dict.fromkeys(_misnamed_blocks(model))
        size = model.block_size or _block_size(Path(model.path))
        if size is None:
            continue
        protocols = params.evaluate.protocols.items()
        lengths = {f"evaluate.protocols.{name}": protocol for name, protocol in protocols}
        for key, sampling in {"sampling": params.sampling, **lengths}.items():
            fault = blocks_misfit(size, sampling.gen_length, sampling.block_length)
            if fault:
                found[f"{key}: {model.path}: {fault}"] = None
        for method in params.matrix.methods:
            run = params.run(task, method, params.matrix.seeds[0])
            if fault := blocks_fault(method, run.algorithm):
                found[fault] = None
    return list(found)


def blocks_notes(params: Params) -> list[str]:
    """Return a note for each block-causal base; its published shape tells where none is there."""
    notes: dict[str, None] = {}  # each once, in order
    scope = params.method.d_opsd.reveal_scope
    avoided = f"; reveal_scope: {scope} shows none" if scope == "all_masked" else ""
    for task in params.matrix.tasks:
        model = params.model_of(task)
        row = named(Path(model.path))
        shape = row.shape if row and row.shape else {}
        size = model.block_size or _block_size(Path(model.path)) or shape.get("block_size")
        if size:
            notes[
                f"the tokens of {model.path} attend in blocks of {size}: a teacher that sees later"
                " blocks teaches nothing on a base whose tokens attend only to their own block and"
                f" earlier ones{avoided} (dopsd's docs/bases.md, block-causal bases)"
            ] = None
    return list(notes)


def _misnamed_blocks(model: ModelConfig) -> list[str]:
    """Return a line if a base's blocks of attention are not set, or set where it has none."""
    base = Path(model.path)
    row, rows = named(base), _kin(base)
    if model.block_size:
        name = _architecture(base)
        if name is None or "block_causal" in config_class(name).attention_patterns:
            return []
        return [f"model.block_size: in {name} every token sees every other; leave the key out"]
    must_name = [row] if row else rows
    if _block_size(base) or not must_name or not all(r.must_name_blocks for r in must_name):
        return []
    example = must_name[0]
    return [
        f"model.block_size: {base} attends in blocks that no file names; {example.name} has"
        f" {example.settings}"
    ]


def _kin(base: Path) -> list[Published]:
    """Return the published checkpoints of a base's architecture."""
    name = _architecture(base)
    return [row for row in published() if row.architecture == name]


def _architecture(base: Path) -> str | None:
    try:
        return architecture_of(base)
    except DopsdError:
        return None  # loading the base reports what is wrong


def _block_size(base: Path) -> int | None:
    """Return the blocks of a base's attention; None if it has none, is damaged or is not there.

    Files that name none have those of their architecture's published checkpoints.
    """
    try:
        size = json.loads((base / "config.json").read_bytes()).get("block_size")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # loading the base reports what is wrong with the file
    if isinstance(size, int) and size > 0:
        return size
    sizes = {(row.shape or {}).get("block_size") for row in _kin(base) if not row.must_name_blocks}
    return sizes.pop() if len(sizes) == 1 else None
