"""The likelihood bound of a completion, and the preference loss of two completions (LLaDA 1.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dopsd.algorithms.common.losses import masked_cross_entropy
from dopsd.core.tensors import true_positions

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import PreferenceBatch
    from dopsd.models.policy import Policy


def likelihood_bound(policy: Policy, batch: PreferenceBatch, max_sequences: int) -> Tensor:
    """Estimate the lower bound of ln p(completion | prompt) for both completions of every pair.

    It is the mean over the N masks of L / l times the sum of ln p at the l masked tokens (LLaDA,
    Eq. 6; LLaDA 1.5, section 3.1).

    Args:
        policy: the model.
        batch: B pairs.
        max_sequences: sequences of one pair in memory at once (two at least); the other masks are
            recomputed in the backward pass. The number of forwards does not depend on B.

    Returns:
        [B, 2], in nats.
    """
    _, sides, draws, _ = batch.loss_mask.shape
    masks_at_once = max(1, max_sequences // sides)
    starts = range(0, draws, masks_at_once)
    groups = [_Masks.of(batch, slice(start, start + masks_at_once)) for start in starts]
    if len(groups) == 1:
        return _weighted(policy, batch, groups[0]).sum(-1) / draws
    sums = [
        checkpoint(_weighted, policy, batch, masks, use_reentrant=False).sum(-1) for masks in groups
    ]
    return torch.stack(sums).sum(0) / draws


@dataclass(frozen=True)
class _Masks:
    """Some of the masks of every completion, and the masked positions."""

    loss_mask: Tensor  # [B, 2, n, G]
    rows: Tensor  # [masked], of the B * 2 * n rows
    columns: Tensor  # [masked]

    @classmethod
    def of(cls, batch: PreferenceBatch, masks: slice) -> _Masks:
        """Return these masks of a batch."""
        on_host = batch.on_host("loss_mask")[:, :, masks].flatten(0, 2)
        loss_mask = batch.loss_mask[:, :, masks]
        return cls(loss_mask, *true_positions(on_host, loss_mask.device))


def _weighted(policy: Policy, batch: PreferenceBatch, masks: _Masks) -> Tensor:
    """Return L / l times the sum of ln p at the masked tokens: [B, 2, n]."""
    size, sides, draws, length = masks.loss_mask.shape
    targets = batch.targets[:, :, None].expand(-1, -1, draws, -1).reshape(-1, length)  # [B*2*n, G]
    weight = batch.length[:, :, None] / masks.loss_mask.sum(-1)  # [B, 2, n]
    loss_mask = masks.loss_mask.reshape(-1, length)
    prompt = batch.prompt.repeat_interleave(sides * draws, 0)
    after_end = (
        torch.arange(length, device=targets.device)
        >= batch.length.flatten().repeat_interleave(draws)[:, None]
    )
    # tokens after the end are masked: they would reveal where the text ends
    ids = torch.cat([prompt, torch.where(loss_mask | after_end, policy.mask_id, targets)], 1)
    mask = batch.attention_mask()
    if mask is not None:
        mask = torch.cat([mask.repeat_interleave(sides * draws, 0), torch.ones_like(loss_mask)], 1)
    hidden = policy.masked_states(ids, mask, targets)
    logits = policy.head(hidden[masks.rows, masks.columns])
    logps = -masked_cross_entropy(logits, targets[masks.rows, masks.columns])  # [masked]
    sums = torch.zeros(len(targets), dtype=logps.dtype, device=logps.device).index_add(
        0, masks.rows, logps
    )
    return sums.view(size, sides, draws) * weight


def preference(bounds: Tensor, ref_bounds: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return -ln sigma(margin) and margin = beta ((B - B_ref)(chosen) - (B - B_ref)(rejected)).

    Args:
        bounds: [B, 2], likelihood bounds in nats, of the preferred and the rejected completion.
        ref_bounds: [B, 2], the same under the initial policy.
        beta: scale of the margin.

    Returns:
        The loss [B] and the margin [B].
    """
    gain = bounds - ref_bounds
    margin = beta * (gain[:, 0] - gain[:, 1])
    return -torch.nn.functional.logsigmoid(margin), margin
