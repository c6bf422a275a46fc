"""The likelihood bound of a completion, and the preference of one completion over another (LLaDA
1.5).
"""

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
    """Estimated lower bound of ln p(completion | prompt), in nats, for both completions of every
    pair. -> [B, 2].

    Mean over the N masks of L / l times the sum of ln p at the l masked tokens (LLaDA, Eq. 6; LLaDA
    1.5, section 3.1). `max_sequences` stand in memory at once (two a pair at least): other masks
    are computed again in the backward pass.
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
    """L / l times the sum of ln p at the masked tokens, for each of these masks. [B, 2, n, G] ->
    [B, 2, n].
    """
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
    ids = torch.cat(
        [prompt, torch.where(loss_mask | after_end, policy.mask_id, targets)], 1
    )  # the tail would tell the end
    mask = torch.cat([prompt_mask, torch.ones_like(loss_mask)], 1)
    hidden = policy.hidden(ids, None if bool(mask.all()) else mask)[:, -length:]
    logps = -masked_cross_entropy(policy.head(hidden[loss_mask]), targets[loss_mask])  # [masked]
    sums = torch.zeros(len(targets), dtype=logps.dtype, device=logps.device).index_add(
        0, loss_mask.nonzero()[:, 0], logps
    )
    return sums.view(size, sides, draws) * weight


def preference(bounds: Tensor, ref_bounds: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """-ln sigma(beta ((B - B_ref)(preferred) - (B - B_ref)(rejected))), and that margin. [B, 2] ->
    [B], [B].
    """
    gain = bounds - ref_bounds
    margin = beta * (gain[:, 0] - gain[:, 1])
    return -torch.nn.functional.logsigmoid(margin), margin
