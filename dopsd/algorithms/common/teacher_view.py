"""What the teacher of a rollout is given in addition to the student's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from dopsd.core.settings import LARGEST
from dopsd.core.types import Rollout, plain, unplain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dopsd.distributed.process_group import ProcessGroup


@dataclass(frozen=True)
class TeacherView:
    """What the teacher of a rollout is given; by default what the student has.

    Attributes:
        prompt_ids: [Q], the teacher's own prompt; None: the student's.
        shown_ids: [G], the completion whose tokens the teacher is shown; None: the rollout's own.
        showable: [G], positions that it may be shown; None: all.
        least: positions that it is shown at least, where as many can be shown.
        first_block: first block whose states are trained on.
        last_block: block after the last one whose states are trained on.
        whole_from: positions from this one on are shown only in states in which all of them are
            masked.
    """

    prompt_ids: Tensor | None = None
    shown_ids: Tensor | None = None
    showable: Tensor | None = None
    least: int = 0
    first_block: int = 0
    last_block: int = LARGEST
    whole_from: int = LARGEST

    def prompt(self, rollout: Rollout) -> Tensor:
        """Return the prompt [Q] of the teacher."""
        return rollout.prompt_ids if self.prompt_ids is None else self.prompt_ids

    def completion(self, rollout: Rollout) -> Tensor:
        """Return the completion [G] whose tokens the teacher is shown."""
        return rollout.completion_ids if self.shown_ids is None else self.shown_ids

    def limit(self, masked: Tensor) -> Tensor:
        """Return the masked positions that may be shown.

        Args:
            masked: [S, G], positions that are masked in each of S states.
        """
        is_before = torch.arange(masked.shape[1]) < self.whole_from  # [G]
        limited = masked & (is_before | (masked | is_before).all(1, keepdim=True))
        return limited if self.showable is None else limited & self.showable

    def to_dict(self) -> dict[str, Any]:
        """Return the view as plain numbers, which other processes can read on any device."""
        return plain(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the view that `to_dict` described."""
        return cls(**unplain(values))


AS_STUDENT = TeacherView()


def gathered(
    group: ProcessGroup, rollouts: Sequence[Rollout], views: Sequence[TeacherView]
) -> tuple[list[Rollout], list[TeacherView]]:
    """Return the rollouts of all processes, and what the teacher of each is given."""
    pairs = group.all_gather_object(
        [(r.to_dict(), view.to_dict()) for r, view in zip(rollouts, views, strict=True)]
    )
    return (
        [Rollout.from_dict(values) for values, _ in pairs],
        [TeacherView.from_dict(values) for _, values in pairs],
    )
