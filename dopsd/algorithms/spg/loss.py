"""Lower and upper bound of the log-likelihood of a token (SPG, section 3.2; the published code)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def lower_bound(logps: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the ELBO: the mean over masks of the mean ln p at masked tokens.

    Args:
        logps: [B, N, G], in nats.
        loss_mask: [B, N, G], True at masked tokens that count.

    Returns:
        [B], in nats per token.
    """
    return ((logps * loss_mask).sum(-1) / loss_mask.sum(-1)).mean(-1)


def upper_bound(logps: Tensor, loss_mask: Tensor, length: Tensor, beta: float) -> Tensor:
    """Return the EUBO: the mean over tokens of ln(mean over masks of p^b 1[masked] / t) / b.

    Tokens that no mask hides are left out.

    Args:
        logps: [B, N, G], in nats.
        loss_mask: [B, N, G], True at masked tokens that count.
        length: [B], tokens that count; t is the share of them that a mask hides.
        beta: b.

    Returns:
        [B], in nats per token.
    """
    share = loss_mask.sum(-1) / length[:, None]  # t, [B, N]
    terms = (beta * logps - share.log()[..., None]).masked_fill(~loss_mask, -torch.inf)
    is_seen = loss_mask.any(1)  # [B, G]
    # no row of -inf alone: its gradient is no number
    terms = terms.masked_fill(~is_seen[:, None], 0.0).logsumexp(1) - math.log(terms.shape[1])
    return (terms * is_seen).sum(-1) / is_seen.sum(-1) / beta
