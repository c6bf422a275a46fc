"""Batches: the tensors of one update, which checkpoints can hold.

Shapes follow the legend of core/types.py.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dopsd.core.tensors import upload


class Batch:
    """Tensors that share a leading dimension B, with a weight per row.

    A batch is made in main memory and uploaded with `to`. It keeps what it was made of: a loss
    asks `on_host` for what it needs to know, as asking a GPU would wait for all work before.
    """

    weight: Tensor  # [B], known before the forward pass
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # every kind of batch is a dataclass

    def __len__(self) -> int:
        return self.weight.shape[0]

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one row."""
        return 1

    @property
    def padded_length(self) -> int:
        """Tokens of a sequence, with padding: of the longest one if they differ."""
        return max((t.shape[-1] for t in self.tensors().values() if t.dim() > 1), default=1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def split(self, n: int) -> Iterator[Self]:
        """Yield consecutive pieces of the batch.

        Args:
            n: most sequences in all forward passes of a piece; a piece has one row at least.
        """
        rows = max(1, n // self.forwards)
        for start in range(0, len(self), rows):
            yield self._cut(slice(start, start + rows))

    def rows(self, indices: list[int]) -> Self:
        """Return the batch of these rows."""
        return self._cut(indices)

    def _cut(self, rows: slice | list[int]) -> Self:
        part = type(self)(**{name: value[rows] for name, value in self.tensors().items()})
        part._copies.update({name: value[rows] for name, value in self._copies.items()})
        return part

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        tensors, target = self.tensors(), torch.device(device)
        moved = type(self)(**{name: upload(value, target) for name, value in tensors.items()})
        on_host = {name: value for name, value in tensors.items() if value.device.type == "cpu"}
        moved._copies.update(self._copies | on_host)
        return moved

    def with_tensors(self, **changed: Tensor) -> Self:
        """Return the batch with other tensors of these names."""
        other = type(self)(**(self.tensors() | changed))
        other._copies.update({n: value for n, value in self._copies.items() if n not in changed})
        return other

    @cached_property
    def _copies(self) -> dict[str, Tensor]:
        """Tensors in main memory by name; no field, so that checkpoints do not hold them."""
        return {}

    def on_host(self, name: str) -> Tensor:
        """Return a tensor in main memory: the one that was uploaded, else a copy."""
        if name not in self._copies:
            self._copies[name] = getattr(self, name).cpu()
        return self._copies[name]

    def attention_mask(self, name: str = "mask") -> Tensor | None:
        """Return a mask of padding; None if nothing is padded: attention is faster without it."""
        mask: Tensor = getattr(self, name)
        return None if bool(self.on_host(name).all()) else mask


@dataclass(frozen=True)
class States(Batch):
    """Recorded denoising states of kept rollouts, as the student and as the teacher see them."""

    student_ids: Tensor  # [B, P+G]
    student_mask: Tensor  # [B, P+G], False on padding
    teacher_ids: Tensor  # [B, Q+G]
    teacher_mask: Tensor  # [B, Q+G]
    candidates: Tensor  # [B, G], masked positions of the block that are hidden from the teacher
    committed: Tensor  # [B, G], candidates that the student committed at this step
    k: Tensor  # [B], positions to train on
    block: Tensor  # [B], index of the current block
    step: Tensor  # [B], index of the denoising step
    weight: Tensor  # [B], 1 / states of the trajectory in this update


@dataclass(frozen=True)
class MaskedTexts(Batch):
    """Completions with some tokens masked, and the tokens to predict there."""

    ids: Tensor  # [B, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the clean completion
    loss_mask: Tensor  # [B, G], True where a token is masked and trained on
    token_weight: Tensor  # [B], factor of each token's loss: 1/t in the masked-diffusion bound
    weight: Tensor  # [B], weight of the row in the update


@dataclass(frozen=True)
class GroupBatch(Batch):
    """Fully masked completions with their advantages and earlier log-probabilities, in nats."""

    ids: Tensor  # [B, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the sampled completion
    completion_mask: Tensor  # [B, G], True up to the first end of text
    advantage: Tensor  # [B], reward less the mean of its group
    old_logps: Tensor  # [B, G], of the targets, under the policy that sampled them
    ref_logps: Tensor  # [B, G], under the initial policy
    weight: Tensor  # [B], tokens of completion_mask


@dataclass(frozen=True)
class PreferenceBatch(Batch):
    """A preferred and a rejected completion (in this order) of each prompt.

    Each completion has N masks, for the estimate of its likelihood bound.
    """

    prompt: Tensor  # [B, P]
    mask: Tensor  # [B, P], False on padding
    targets: Tensor  # [B, 2, G]
    loss_mask: Tensor  # [B, 2, N, G], True where masked
    length: Tensor  # [B, 2], tokens up to the first end of text
    ref_bounds: Tensor  # [B, 2], the bound under the initial policy and the same masks, in nats
    weight: Tensor  # [B], 1 for a pair

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one pair: 2 N."""
        return self.loss_mask.shape[1] * self.loss_mask.shape[2]

    @property
    def padded_length(self) -> int:
        """Tokens of a sequence: P + G."""
        return self.prompt.shape[1] + self.targets.shape[-1]


@dataclass(frozen=True)
class Unmasking(Batch):
    """Solutions with a part of one block masked, and with the rest of that block masked instead.

    All tokens after the block are masked in both.
    """

    ids: Tensor  # [B, P+G]
    other_ids: Tensor  # [B, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the clean solution
    loss_mask: Tensor  # [B, G], masked in `ids` inside the block
    other_loss_mask: Tensor  # [B, G], masked in `other_ids` inside the block
    weight: Tensor  # [B], 1 for a solution

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one solution: 2."""
        return 2


def batch_from(kind: str, tensors: dict[str, Tensor]) -> Batch:
    """Return the batch that a checkpoint holds as named tensors.

    Args:
        kind: name of a class derived from Batch, here or in an algorithm's own folder.

    Raises:
        KeyError: if there is no such kind.
        TypeError: if the tensors are not those of the kind.
    """
    kinds = {subclass.__name__: subclass for subclass in _kinds_below(Batch)}
    return kinds[kind](**tensors)


def _kinds_below(kind: type[Batch]) -> Iterator[type[Batch]]:
    """Yield all classes that are derived from a kind."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _kinds_below(subclass)
