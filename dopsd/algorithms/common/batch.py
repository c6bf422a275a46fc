"""Batches: what a method trains on in one update, as tensors that checkpoints can hold. Shapes: the
legend of types.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from dataclasses import Field

    import torch
    from torch import Tensor


class Batch:
    """Tensors that share a leading dimension, with a weight per row that is known before the
    forward pass.
    """

    weight: Tensor  # [B]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # every kind of batch is a dataclass

    def __len__(self) -> int:
        return self.weight.shape[0]

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one row."""
        return 1

    def tensors(self) -> dict[str, Tensor]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def split(self, n: int) -> Iterator[Self]:
        """Consecutive pieces of at most n sequences in all their forward passes, and of a row at
        least.
        """
        rows = max(1, n // self.forwards)
        for start in range(0, len(self), rows):
            yield type(self)(
                **{name: value[start : start + rows] for name, value in self.tensors().items()}
            )

    def rows(self, indices: list[int]) -> Self:
        return type(self)(**{name: value[indices] for name, value in self.tensors().items()})

    def to(self, device: torch.device | str) -> Self:
        return type(self)(**{name: value.to(device) for name, value in self.tensors().items()})


@dataclass(frozen=True)
class States(Batch):
    """Recorded denoising states of kept rollouts, as the student saw them and as the teacher sees
    them.
    """

    student_ids: Tensor  # [B, P+G]
    student_mask: Tensor  # [B, P+G], False on padding
    teacher_ids: Tensor  # [B, Q+G]
    teacher_mask: Tensor  # [B, Q+G]
    candidates: (
        Tensor  # [B, G], masked positions of the current block that the teacher was not shown
    )
    committed: Tensor  # [B, G], what the student committed at this step
    k: Tensor  # [B], positions to train on
    block: Tensor  # [B]
    step: Tensor  # [B]
    weight: Tensor  # [B]


@dataclass(frozen=True)
class MaskedTexts(Batch):
    """Completions with some tokens masked, and the tokens to be predicted there."""

    ids: Tensor  # [B, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the clean completion
    loss_mask: Tensor  # [B, G], True where a token is masked and trained on
    token_weight: Tensor  # [B], the factor 1/t of the masked-diffusion bound
    weight: Tensor  # [B]


@dataclass(frozen=True)
class GroupBatch(Batch):
    """Completions with their advantages, all masked, and the log-probabilities that they had."""

    ids: Tensor  # [B, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], what was sampled
    completion_mask: Tensor  # [B, G], True up to the first end of text
    advantage: Tensor  # [B]
    old_logps: Tensor  # [B, G], log-probabilities of the targets when they were sampled
    ref_logps: Tensor  # [B, G], under the initial policy
    weight: Tensor  # [B], counted tokens


@dataclass(frozen=True)
class PreferenceBatch(Batch):
    """A preferred and a rejected completion of a prompt (in this order), each with N masks for its
    likelihood's bound.
    """

    prompt: Tensor  # [B, P]
    mask: Tensor  # [B, P], False on padding
    targets: Tensor  # [B, 2, G]
    loss_mask: Tensor  # [B, 2, N, G], True where masked
    length: Tensor  # [B, 2], tokens up to the first end of text
    ref_bounds: Tensor  # [B, 2], the bound under the initial policy and the same masks, in nats
    weight: Tensor  # [B]

    @property
    def forwards(self) -> int:
        return self.loss_mask.shape[1] * self.loss_mask.shape[2]


@dataclass(frozen=True)
class Unmasking(Batch):
    """Solutions with a block partly masked and all after it, and the same with the rest of the
    block masked instead.
    """

    ids: Tensor  # [B, P+G]
    other_ids: Tensor  # [B, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G]
    loss_mask: Tensor  # [B, G], masked in `ids` inside the block
    other_loss_mask: Tensor  # [B, G], masked in `other_ids` inside the block
    weight: Tensor  # [B]

    @property
    def forwards(self) -> int:
        return 2


BATCH_TYPES: dict[str, type[Batch]] = {
    kind.__name__: kind for kind in (States, MaskedTexts, GroupBatch, PreferenceBatch, Unmasking)
}
# What 0.1 called these in checkpoints; read for one release.
FORMER_KINDS = {"Group": "GroupBatch", "Pairs": "PreferenceBatch"}
FORMER_FIELDS = {
    "MaskedTexts": {"predicted": "loss_mask"},
    "GroupBatch": {"counted": "completion_mask", "old": "old_logps", "reference": "ref_logps"},
    "PreferenceBatch": {"predicted": "loss_mask", "reference": "ref_bounds"},
    "Unmasking": {"predicted": "loss_mask", "other": "other_loss_mask"},
}


def batch_from(kind: str, tensors: dict[str, Tensor]) -> Batch:
    """Return the batch that a checkpoint holds as named tensors.

    Raises:
        KeyError: if there is no such kind.
        TypeError: if the tensors are not those of the kind.
    """
    kind = FORMER_KINDS.get(kind, kind)
    names = FORMER_FIELDS.get(kind, {})
    return BATCH_TYPES[kind](**{names.get(name, name): value for name, value in tensors.items()})
