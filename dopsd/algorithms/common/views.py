"""Completions under several masks each, as their likelihood is estimated, and ln p of the masked.

Shapes follow the legend of core/types.py; N is the number of masks of a completion, its views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dopsd.algorithms.common.losses import masked_cross_entropy
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import left_pad, through_first, true_positions

if TYPE_CHECKING:
    from dopsd.core.types import Rollout
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class Completions:
    """Rollouts as tensors in main memory."""

    prompts: Tensor  # [B, P], padded on the left
    prompt_mask: Tensor  # [B, P], False on padding
    targets: Tensor  # [B, G]
    completion_mask: Tensor  # [B, G], True up to the first end of text

    @classmethod
    def of(cls, policy: Policy, rollouts: Sequence[Rollout]) -> Self:
        """Return B rollouts as tensors."""
        prompts, prompt_mask = left_pad([r.prompt_ids for r in rollouts], policy.eos_id)
        targets = torch.stack([r.completion_ids for r in rollouts])
        return cls(prompts, prompt_mask, targets, through_first(targets, policy.eos_id))

    @property
    def mask(self) -> Tensor:
        """[B, P+G], False on padding."""
        return torch.cat([self.prompt_mask, torch.ones_like(self.completion_mask)], 1)

    def masked_prompts(self, keys: Tensor, share: float, mask_id: int) -> Tensor:
        """Mask prompt tokens at random.

        Positions count back from the completion, so that padding does not change the draw.

        Args:
            keys: [B, ...].

        Returns:
            [B, ..., P].
        """
        width, extra = self.prompts.shape[1], (1,) * (keys.dim() - 1)
        shape = (len(keys), *extra, width)
        is_drawn = uniform(fold_in(keys[..., None], torch.arange(width) - width)) < share
        hidden = is_drawn & self.prompt_mask.view(shape)
        return torch.where(hidden, mask_id, self.prompts.view(shape))


def rollout_keys(rollouts: Sequence[Rollout], *parts: str | int) -> Tensor:
    """Return a random key [B] for each rollout, of these parts and its problem and attempt."""
    return torch.tensor([key_from(*parts, r.problem_id, r.attempt) for r in rollouts])


def random_ranks(draw: Tensor, eligible: Tensor) -> Tensor:
    """Return the place of each position in a random order, eligible positions first.

    Args:
        draw: [..., G], uniform numbers.
        eligible: [..., G], bool, that broadcasts with `draw`.

    Returns:
        [..., G], from 0: `random_ranks(...) < n` are n eligible positions without replacement.
    """
    order = draw.masked_fill(~eligible, 2.0).argsort(dim=-1, stable=True)
    places = torch.arange(draw.shape[-1]).expand_as(order).contiguous()
    return torch.empty_like(order).scatter_(-1, order, places)


def random_subset(draw: Tensor, eligible: Tensor) -> Tensor:
    """Draw n ~ U{1..number of eligible positions} of these positions, without replacement.

    Args:
        draw: [..., G+1], uniform numbers; the last column decides n.
        eligible: [..., G], bool, that broadcasts with `draw`; at least one position of a row.

    Returns:
        [..., G], bool.
    """
    count = (draw[..., -1] * eligible.sum(-1)).long() + 1
    return random_ranks(draw[..., :-1], eligible) < count[..., None]


@dataclass(frozen=True)
class Views:
    """Masked completions on the device of the policy, to be predicted where they are masked."""

    ids: Tensor  # [B, N, P+G]
    mask: Tensor | None  # [B, P+G], False on padding; None without padding
    targets: Tensor  # [B, G]
    loss_mask: Tensor  # [B, N, G] in main memory, True where a token is predicted


def view_logps(policy: Policy, views: Views, max_sequences: int) -> Tensor:
    """Return ln p of the targets at the predicted positions, 0 elsewhere: [B, N, G], in nats.

    Args:
        views: N masked views of each of B completions.
        max_sequences: views of one completion in memory at once; those beyond are recomputed in
            the backward pass. The number of forwards does not depend on B.
    """
    at_once, count = max(1, max_sequences), views.ids.shape[1]
    parts = [
        Views(
            views.ids[:, start : start + at_once],
            views.mask,
            views.targets,
            views.loss_mask[:, start : start + at_once],
        )
        for start in range(0, count, at_once)
    ]
    if len(parts) == 1:
        return _logps(policy, parts[0])
    logps = [checkpoint(_logps, policy, part, use_reentrant=False) for part in parts]
    return torch.cat(logps, 1)


def _logps(policy: Policy, views: Views) -> Tensor:
    size, count, length = views.loss_mask.shape
    rows, columns = true_positions(views.loss_mask.flatten(0, 1), views.ids.device)
    mask = None if views.mask is None else views.mask.repeat_interleave(count, 0)
    clean = views.targets.repeat_interleave(count, 0)  # [B*N, G]
    hidden = policy.masked_hidden(views.ids.flatten(0, 1), mask, clean)  # [B*N, G, D]
    targets = clean[rows, columns]
    logps = -masked_cross_entropy(policy.head(hidden[rows, columns]), targets)
    empty = torch.zeros(size * count, length, device=logps.device)
    return empty.index_put((rows, columns), logps).view(size, count, length)
