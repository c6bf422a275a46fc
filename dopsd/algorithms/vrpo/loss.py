"""The likelihood bound of a completion, and the preference loss of two completions (LLaDA 1.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dopsd.algorithms.common.losses import masked_cross_entropy

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
        max_sequences: sequences in memory at once (two per pair at least); the other masks are
            recomputed in the backward pass.

    Returns:
        [B, 2], in nats.
    """
    size, sides, draws, _ = batch.loss_mask.shape
    masks_at_once = max(1, max_sequences // (size * sides))
    mask_groups = batch.loss_mask.split(masks_at_once, dim=2)
    if len(mask_groups) == 1:
        return _weighted(policy, batch, batch.loss_mask).sum(-1) / draws
    sums = [
        checkpoint(_weighted, policy, batch, mask_group, use_reentrant=False).sum(-1)
        for mask_group in mask_groups
    ]
    return torch.stack(sums).sum(0) / draws


def _weighted(policy: Policy, batch: PreferenceBatch, loss_mask: Tensor) -> Tensor:
    """Return L / l times the sum of ln p at the masked tokens: masks [B, 2, n, G] -> [B, 2, n]."""
    size, sides, draws, length = loss_mask.shape
    targets = batch.targets[:, :, None].expand(-1, -1, draws, -1).reshape(-1, length)  # [B*2*n, G]
    weight = batch.length[:, :, None] / loss_mask.sum(-1)  # [B, 2, n]
    loss_mask = loss_mask.reshape(-1, length)
    prompt, prompt_mask = (
        x.repeat_interleave(sides * draws, 0) for x in (batch.prompt, batch.mask)
    )
    after_end = (
        torch.arange(length, device=targets.device)
        >= batch.length.flatten().repeat_interleave(draws)[:, None]
    )
    # tokens after the end are masked: they would reveal where the text ends
    ids = torch.cat([prompt, torch.where(loss_mask | after_end, policy.mask_id, targets)], 1)
    mask = torch.cat([prompt_mask, torch.ones_like(loss_mask)], 1)
    hidden = policy.hidden(ids, None if bool(mask.all()) else mask)[:, -length:]
    logps = -masked_cross_entropy(policy.head(hidden[loss_mask]), targets[loss_mask])  # [masked]
    sums = torch.zeros(len(targets), dtype=logps.dtype, device=logps.device).index_add(
        0, loss_mask.nonzero()[:, 0], logps
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
