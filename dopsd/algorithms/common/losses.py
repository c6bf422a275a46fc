"""Cross-entropies and log-probabilities of masked tokens, from one forward of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import MaskedTexts
    from dopsd.models.policy import Policy


def masked_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln p(target) [N] at N masked tokens, in nats (LLaDA, Eq. 3 without the factor 1/t).

    Args:
        logits: [N, V].
        targets: [N].
    """
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")


def masked_diffusion_loss(policy: Policy, batch: MaskedTexts) -> Tensor:
    """Return the masked-diffusion bound of each row, in nats per token (LLaDA, Eq. 5).

    This is the sum over masked tokens of cross-entropy / t, divided by the length of the
    completion.

    Args:
        policy: the model in training.
        batch: B masked completions.

    Returns:
        [B].
    """
    length = batch.targets.shape[1]
    mask = None if bool(batch.mask.all()) else batch.mask
    hidden = policy.hidden(batch.ids, mask)[:, -length:]  # [B, G, D]
    rows = batch.loss_mask.nonzero()[:, 0]  # [N]
    cross_entropy = masked_cross_entropy(
        policy.head(hidden[batch.loss_mask]), batch.targets[batch.loss_mask]
    )
    return (
        torch.zeros_like(batch.weight).index_add(0, rows, cross_entropy)
        * batch.token_weight
        / length
    )


def token_logps(policy: Policy, ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
    """Return ln p(target) at every position of the completion, in nats.

    Args:
        policy: the model.
        ids: [B, P+G], with the completion masked.
        mask: [B, P+G], False on padding.
        targets: [B, G].

    Returns:
        [B, G].
    """
    length = targets.shape[1]
    hidden = policy.hidden(ids, None if bool(mask.all()) else mask)[:, -length:]  # [B, G, D]
    return -masked_cross_entropy(policy.head(hidden).flatten(0, 1), targets.flatten()).view_as(
        targets
    )
