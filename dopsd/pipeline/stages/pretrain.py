"""`dopsd pretrain --task sudoku`: the embedded base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.training.pretrain import pretrain

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task: str) -> None:
    """Make base/<task>/ if there is none; one that does not match only with leave."""
    pretrain(params.embedded_base(task), task, vars(params.data)[task])
