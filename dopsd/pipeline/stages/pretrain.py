"""`dopsd pretrain --task sudoku`: train the embedded base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.training.pretrain import pretrain

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task: str) -> None:
    """Train base/<task>/ if absent; replace one that does not match only if the user allows it."""
    pretrain(params.embedded_base(task), task, params.data.tasks[task])
